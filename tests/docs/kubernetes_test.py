#!/usr/bin/env python3
"""examples/kubernetes: the manifests are YAML, they fit together, and ranks with their variables meet.

Needs PyYAML, which comes with the site's tool; where neither is there the test is skipped and says so."""

import os
import subprocess
import sys
import unittest

from support import ROOT, TOOLS, program, read, tool

DOCS = program("tools/docs")
try:
    import yaml
except ImportError:
    python = DOCS.find_python()
    if python is None or os.path.realpath(python) == os.path.realpath(sys.executable):
        print("SKIPPED: PyYAML is not installed; tools/install_dependencies docs", file=sys.stderr)
        sys.exit(DOCS.NOT_INSTALLED)
    os.execv(python, [python, "-B", *sys.argv])

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
PROGRAM = os.environ.get("UNISONO_EXAMPLE", os.path.join(ROOT, "build", "release", "examples", "api", "all_reduce"))


class NoDuplicates(yaml.SafeLoader):
    """Refuses a key that is there twice, as YAML does and PyYAML does not."""


def mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    if len(keys) != len(set(keys)):
        raise yaml.YAMLError(f"a key twice: {keys}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


NoDuplicates.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def manifests(name):
    return {document["kind"]: document for document in yaml.load_all(read("examples/kubernetes/" + name), NoDuplicates)}


class Manifests(unittest.TestCase):
    def setUp(self):
        self.service, self.job = (manifests("train.yaml")[kind] for kind in ("Service", "Job"))
        self.template = self.job["spec"]["template"]
        self.container = self.template["spec"]["containers"][0]
        self.environment = {entry["name"]: entry for entry in self.container["env"]}

    def value(self, name):
        return self.environment[name]["value"]

    def test_each_pod_has_a_name_that_is_its_own_address_from_the_start(self):
        self.assertEqual(self.service["spec"]["clusterIP"], "None")
        self.assertIs(self.service["spec"]["publishNotReadyAddresses"], True)
        self.assertEqual(self.template["spec"]["subdomain"], self.service["metadata"]["name"])
        self.assertLessEqual(self.service["spec"]["selector"].items(), self.template["metadata"]["labels"].items())

    def test_all_ranks_run_at_once_and_are_numbered(self):
        spec = self.job["spec"]
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertEqual(self.value("WORLD_SIZE"), str(spec["completions"]))
        self.assertEqual(self.environment["RANK"]["valueFrom"]["fieldRef"]["fieldPath"], INDEX)
        self.assertEqual(self.template["spec"]["restartPolicy"], "Never")

    def test_rendezvous_is_at_the_pod_of_rank_0(self):
        self.assertEqual(self.value("MASTER_ADDR"), f"{self.job['metadata']['name']}-0.{self.service['metadata']['name']}")
        self.assertIn(int(self.value("MASTER_PORT")), range(1, 65536))

    def test_values_of_variables_are_strings_and_the_library_knows_them(self):
        manual = tool("man").replace("\\", "")
        for name, entry in self.environment.items():
            self.assertIn(name, manual)
            self.assertIsInstance(entry.get("value", ""), str)

    def test_the_policy_lets_the_pods_of_the_job_reach_each_other_at_all_ports(self):
        spec = manifests("network_policy.yaml")["NetworkPolicy"]["spec"]
        labels = {"matchLabels": self.service["spec"]["selector"]}
        self.assertEqual(spec["podSelector"], labels)
        everything = [{"protocol": "TCP", "port": 1, "endPort": 65535}]
        self.assertEqual(spec["ingress"], [{"from": [{"podSelector": labels}], "ports": everything}])
        self.assertEqual(spec["egress"][0], {"to": [{"podSelector": labels}], "ports": everything})

    def test_ranks_with_these_variables_form_a_group(self):
        """The pod's name, number and the Job's identity are what the cluster would fill in; the port is one that is free
        here."""
        held = subprocess.Popen([TOOLS["unisono"], "rendezvous", "--listen", "127.0.0.1:0", "--quiet"],
                                stdout=subprocess.PIPE, text=True)
        self.addCleanup(held.communicate)
        self.addCleanup(held.kill)
        port = held.stdout.readline().strip().rsplit(":", 1)[1]
        world = int(self.value("WORLD_SIZE"))
        ranks = []
        for rank in range(world):
            filled = {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "UNISONO_JOB": "0f3c"}
            values = {name: filled.get(name, entry.get("value")) for name, entry in self.environment.items()}
            ranks.append(subprocess.Popen([PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=values))
            self.addCleanup(ranks[-1].communicate)
            self.addCleanup(ranks[-1].kill)
        for rank, process in enumerate(ranks):
            self.assertEqual(process.communicate(timeout=60)[0], f"rank {rank} of {world}: 1000 times 10\n")


if __name__ == "__main__":
    unittest.main()
