"""A part of ``failover`` in network namespaces: the leader is cut off; prints the times as JSON."""

import json
import sys
from functools import partial

from bench._clusters import BROKERS, running_cluster
from bench._processes import scratch
from bench._rigs import TOPIC
from bench.failover import CUT_OFF, Times, strike, waiting
from tests.support.network import Network, between

ETCD = "e1"


def main() -> None:
    """Cut off the leader, as often as the argument says."""
    times: Times = {}
    names = [f"b{number}" for number in range(1, BROKERS + 1)]
    with (
        Network([*names, ETCD]) as network,
        scratch() as place,
        running_cluster(
            place, [network.hosts[each] for each in names], network.hosts[ETCD]
        ) as all_of,
    ):
        all_of.create_topic(TOPIC)
        for number in range(int(sys.argv[1])):
            leader = all_of.leader(TOPIC)
            ways = between([names[all_of.brokers.index(leader)]], network.hosts)
            clients = waiting(all_of, leader, number)
            strike(CUT_OFF, partial(network.cut, ways), clients, times)
            network.heal()
            all_of.wait_in_sync(TOPIC)
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
