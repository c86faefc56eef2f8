"""Boosted trees, the privileged ceiling and learners that intervene, as a user trains and compares them."""

import numpy as np
import pytest
import yaml

from stopwise.data.store import write_trajectories
from stopwise.envs.uplift import UpliftFit, write_fit
from stopwise.runtime import load
from stopwise.signals.features import FeatureSpec

CONFIG = {
    "kind": "boosted",
    "signals": "signals.parquet",
    "reward": {"search": 0.02},
    "grid": {"rounds": [10, 20], "leaves": [4], "min_leaf": [20], "rate": [0.2]},
    "targets": {"folds": 3, "min_rows": 30},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_logs, answer):
    """A working folder with signals, configs and an uplift; commands run inside it."""
    folder = tmp_path_factory.mktemp("work")
    write_trajectories(folder / "logs.parquet", make_logs())
    (folder / "trees.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    controllers = [{"policy": "boosted"}, {"policy": "privileged"}, {"kind": "oracle"}]
    table = {"signals": "signals.parquet", "reward": {"search": 0.02}, "controllers": controllers}
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    size = 2 * len(FeatureSpec(()))
    (folder / "uplift").mkdir()
    write_fit(
        folder / "uplift" / "uplift.json",
        UpliftFit(FeatureSpec(()), np.zeros(size), np.ones(size), np.zeros(size), 2.0, 100, 50, 2),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("STOPWISE_CACHE", str(folder / "cache"))
        answer("signals", "logs.parquet", "--only", "Nov", "steps_since_new", "--out", "signals.parquet")
        yield folder


def test_trees_and_their_ceiling_stand_in_the_table(place, answer, command):
    trained = answer("train", "trees.yaml", "--out", "boosted")
    answer("train", "trees.yaml", "kind=privileged", "--out", "privileged")
    assert trained["chosen"].keys() == {"threshold"}
    assert [row["params"]["rounds"] for row in trained["tried"]] == [10, 20]
    result = answer("benchmark", "benchmark.yaml", "--out", "table")
    trees, ceiling, oracle = result["rows"]
    assert (trees["kind"], ceiling["kind"]) == ("boosted", "privileged")
    assert trees["return"] <= oracle["return"]
    assert ceiling["return"] <= oracle["return"]
    assert load("boosted/policy").package.controller.kind == "boosted"
    status, _, err = command("replay", "privileged/policy", "logs.parquet", "--out", "decisions.jsonl")
    assert status == 2
    assert "needs hindsight, which a live agent does not have" in err


@pytest.mark.parametrize("kind", ["boosted", "logistic"])
def test_learners_intervene_under_uplift(place, answer, kind):
    grid = [] if kind == "boosted" else ["grid={C: [0.1]}"]
    words = ["train", "trees.yaml", f"kind={kind}", *grid, "intervention=uplift", "uplift=uplift", "--out", kind]
    trained = answer(*words)
    assert trained["chosen"].keys() == {"threshold", "intervene_threshold"}
    assert trained["data_sha256"].keys() == {"signals", "uplift"}
    assert trained["validation"]["interventions"] > 0
    table = ["benchmark", "benchmark.yaml", "intervention=uplift", "uplift=uplift", f"controllers=[{{policy: {kind}}}]"]
    [row] = answer(*table, "--out", f"{kind}-table")["rows"]
    assert row["intervention_model"] == "uplift"
    assert row["interventions"] > 0


def test_an_uplift_that_is_not_named_is_asked_for(place, command):
    status, _, err = command("train", "trees.yaml", "intervention=uplift", "--out", "x")
    assert (status, "intervention uplift: needs the key `uplift`" in err) == (2, True)
    status, _, err = command("train", "trees.yaml", "uplift=uplift", "--out", "x")
    assert (status, "uplift: is for intervention uplift, found intervention forbidden" in err) == (2, True)
