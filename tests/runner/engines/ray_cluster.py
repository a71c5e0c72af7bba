"""A Ray cluster of two machines on this machine, as a program that a test starts.

It prints the address of the cluster. A line on stdin removes the second machine, and the end of
stdin ends the cluster.
"""

import os
import sys


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    if sys.stdin.readline():
        cluster.remove_node(second, allow_graceful=False)
        sys.stdout.write("removed\n")
        sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
