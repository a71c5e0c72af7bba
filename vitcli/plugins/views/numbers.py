from vitcli.core.metric import accuracy_of_outputs

knn_accuracy = accuracy_of_outputs(name="knn_accuracy", label="k-NN accuracy", short="k-NN")
"""Accuracy of ``core.metrics.knn.leave_one_out_knn`` on the features of a split."""
