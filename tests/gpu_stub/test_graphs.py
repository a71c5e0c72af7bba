"""What torch.compile traces on the stub GPU: one graph, no break, no recompilation."""

from tests.gpu_stub.graphs import trace_cases, variants
from tests.gpu_stub.stub import ask_stub

ASK = "import json; from tests.gpu_stub import graphs; print(json.dumps(graphs.{}()))"


def test_a_training_is_one_graph_and_an_evaluation_another(tmp_path):
    found = ask_stub(ASK.format("trace_all"), cwd=tmp_path)
    assert {label: counts for label, counts in found.items() if counts != [1, 2]} == {}
    assert found.keys() == trace_cases().keys()


def test_every_variant_in_one_process_is_compiled_for_its_own_shapes(tmp_path):
    found = ask_stub(ASK.format("train_variants"), cwd=tmp_path)
    assert {label: counts for label, counts in found.items() if counts != [1, 0]} == {}
    assert found.keys() == variants().keys()
    assert len(found) > 12
