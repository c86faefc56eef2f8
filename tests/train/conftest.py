import numpy as np
import pytest


@pytest.fixture(scope="session")
def knowing(questions_of, run_of, table_of):
    """Runs in which Cov is 1 from the step on after which nothing more is found, and Sim says nothing.

    Four finds are one to three steps apart, then come three to eight idle steps: the step index alone cannot tell.
    Questions have one to three runs; some questions belong to no split that training may look at.
    """
    rng = np.random.default_rng(7)
    runs = []
    for split, count in (("train", 40), ("val", 20), ("cal", 4), ("test", 15)):
        for question in questions_of(split, count):
            for number in range(rng.integers(1, 4)):
                found, recall = 0.0, []
                for gap in rng.integers(1, 4, size=4):
                    recall += [found] * (gap - 1)
                    found += 0.25
                    recall.append(found)
                done = len(recall) - 1
                recall += [found] * int(rng.integers(3, 9))
                steps = len(recall)
                cov = [float(step >= done) for step in range(steps)]
                signals = {"Cov": cov, "Sim": rng.random(steps).tolist(), "RE": ["no logprobs"] * steps}
                runs.append(run_of(recall, id=f"{question}/{number}", question=question, signals=signals))
    return table_of(runs, signals=("Cov", "Sim", "RE"))
