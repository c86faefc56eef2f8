import json
from dataclasses import replace

import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import sha256_file, write_json
from stopwise.data.records import Action, Document, Step, Trajectory
from stopwise.data.store import write_trajectories
from stopwise.evaluation.annotation.answers import Answers
from stopwise.evaluation.annotation.report import open_raters, report, rows
from stopwise.evaluation.annotation.study import KEY, STUDY, Source, cut, item_of, read_study, sample, sources_of

GOOD = {"correct": 1, "reasonable": 5, "actionable": 4}
BAD = {"correct": 0, "reasonable": 1, "actionable": 2}


def run_of(number, guidance, question="q"):
    """Three searches; a suggestion after each that has one."""
    steps = [
        Step("search", f"thought {t}", (f"query {t}",), (Document(f"d{t}", f"text {t}", f"title {t}"),),
             logged_action=Action.INTERVENE if told else Action.CONTINUE, guidance=told)
        for t, told in enumerate(guidance)
    ]  # fmt: skip
    return Trajectory(f"run{number}", f"{question}{number}", f"where is {question}{number}?", tuple(steps))


@pytest.fixture
def sources(tmp_path):
    """Twelve questions with two suggestions each by one method and with one each by the other."""
    for method, told in (("alpha", ("Do A.", None, "Do B.")), ("beta", (None, "Do C.", None))):
        runs = [run_of(number, [text and f"{text} ({number})" for text in told]) for number in range(12)]
        write_trajectories(tmp_path / f"{method}.parquet", runs)
    return [Source("alpha", tmp_path / "alpha.parquet"), Source("beta", tmp_path / "beta.parquet")]


def write_study(folder, study, key):
    write_json(folder / STUDY, study)
    write_json(folder / KEY, key | {"study_sha256": sha256_file(folder / STUDY)})
    return read_study(folder)


def test_each_method_gives_as_many_on_the_same_questions(sources):
    study, key = sample(sources, 8)
    assert len(study["items"]) == len(key["items"]) == 16
    asked = {m: [item["question_id"] for item in key["items"] if item["method"] == m] for m in ("alpha", "beta")}
    assert len(set(asked["alpha"])) == len(asked["alpha"]) == 8
    assert set(asked["alpha"]) == set(asked["beta"])
    assert key["methods"]["alpha"] == {"interventions": 24, "questions": 12, "sampled_questions": 8}
    for shown, item in zip(study["items"], key["items"], strict=True):
        number = item["trajectory"].removeprefix("run")
        assert shown["question"] == f"where is q{number}?"
        letter = {("alpha", 0): "A", ("alpha", 2): "B", ("beta", 1): "C"}[item["method"], item["step"]]
        assert shown["suggestion"] == f"Do {letter}. ({number})"
        assert [step["thought"] for step in shown["earlier"]] == [f"thought {t}" for t in range(item["step"])]
        assert shown["step"]["documents"] == [{"title": f"title {item['step']}", "text": f"text {item['step']}"}]


def test_a_question_gives_a_second_one_only_when_all_have_given_one(sources):
    _, key = sample([sources[0], replace(sources[1], method="beta"), replace(sources[1], method="beta")], 18)
    asked = [item["question_id"] for item in key["items"] if item["method"] == "alpha"]
    assert len(set(asked)) == 12
    assert max(map(asked.count, asked)) == 2
    steps = {(item["trajectory"], item["step"]) for item in key["items"] if item["method"] == "alpha"}
    assert len(steps) == 18


def test_the_seed_draws_questions_and_order(sources):
    assert sample(sources, 6, seed=1) == sample(sources, 6, seed=1)
    one, other = sample(sources, 6, seed=1)[1], sample(sources, 6, seed=2)[1]
    assert [item["question_id"] for item in one["items"]] != [item["question_id"] for item in other["items"]]
    order = [item["method"] for item in one["items"]]
    assert order not in (sorted(order), sorted(order, reverse=True))


def test_what_raters_see_names_neither_method_nor_file_nor_outcome(sources, tmp_path):
    study, _ = sample(sources, 8)
    text = json.dumps(study)
    for hidden in ("alpha", "beta", "run1", str(tmp_path), "parquet", 'q1"', "INTERVENE", "logged_action", "correct"):
        assert hidden not in text
    run = replace(run_of(1, ["x"]), answer="secret", correct=True, gold_ids=("secret",), agent="secret")
    assert "secret" not in json.dumps(item_of(run, 0))


def test_long_texts_are_cut_and_say_so():
    assert cut("abc", 3) == "abc"
    assert cut("abcde", 3) == "abc [... 2 more characters]"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"per_method": 13}, DataError, "beta: 12 interventions with a suggestion; expected 13"),
        ({"per_method": 0}, UsageError, "--per-method 0; expected 1 or more"),
        ({"per_method": 1, "methods": ["alpha"]}, UsageError, "suggestions of alpha alone; expected two methods"),
        ({"per_method": 1, "methods": ["gamma"]}, UsageError, "--method gamma: no such method; found alpha, beta"),
    ],
)
def test_what_cannot_be_drawn(sources, options, error, message):
    with pytest.raises(error, match=message):
        sample(sources, **options)


def test_where_runs_come_from(tmp_path):
    write_trajectories(tmp_path / "logs.parquet", [run_of(1, ["x"])])
    for name, controller in (("one", {"kind": "llm_critic"}), ("two", {"kind": None, "policy": "p/mcm"}), ("no", None)):
        write_json(tmp_path / name / "collection.json", {"controller": controller})
        write_trajectories(tmp_path / name / "trajectories.parquet", [run_of(1, ["x"])])
    write_json(tmp_path / "one2" / "collection.json", {"controller": {"kind": "llm_critic"}})
    write_trajectories(tmp_path / "one2" / "trajectories.parquet", [])
    write_json(tmp_path / "open" / "collection.json", {"controller": {"kind": "x"}})
    for arm in ("ds_mcm", "never stop"):
        write_json(tmp_path / "bench" / "arms" / f"{arm[:2]}.json", {"arm": arm})
        write_trajectories(tmp_path / "bench" / "arms" / f"{arm[:2]}.parquet", [])

    for name, record in (("odd", {"controller": {"kind": None}}), ("list", [])):
        write_json(tmp_path / name / "collection.json", record)
        write_trajectories(tmp_path / name / "trajectories.parquet", [])
    write_json(tmp_path / "cut" / "arms" / "one.json", {"counts": []})
    write_trajectories(tmp_path / "cut" / "arms" / "one.parquet", [])

    def methods(*words):
        return [source.method for source in sources_of([word.replace("@", f"{tmp_path}/") for word in words])]

    assert methods("@logs.parquet", "@one", "@two", "@bench") == ["logs", "llm_critic", "mcm", "ds_mcm", "never stop"]
    assert methods("a=@one", "a=@logs.parquet", "b=@one") == ["a", "a", "b"]
    for words, message in (
        (("@none",), "no such file or folder"),
        (("@no",), "was collected without a controller"),
        (("@open",), "is not finished"),
        (("@one", "@one"), "is named twice for 'llm_critic'"),
        (("@one", "@one2"), r"its method would be 'llm_critic', as that of .*; tell them apart, as NAME="),
        (("a=@one", "a=@one"), "is named twice for 'a'"),
        (("x=@bench",), "a benchmark holds several methods"),
        (("=@one",), "names no method"),
        (("@",), "holds neither a finished collection nor the arms"),
        (("@odd",), r"collection.json: names no controller; say METHOD="),
        (("@list",), r"collection.json: names no controller"),
        (("@cut",), "is no record of an arm"),
    ):
        with pytest.raises((DataError, UsageError), match=message):
            methods(*words)


@pytest.fixture
def study(sources, tmp_path):
    return write_study(tmp_path / "study", *sample(sources, 10))


def _judge(study, rater, verdict):
    """`verdict` is asked for each item with its number and method."""
    answers = Answers(study, rater)
    for number, item in enumerate(json.loads((study.folder / KEY).read_text())["items"], start=1):
        given = verdict(number, item["method"])
        if given is not None:
            answers.put(number, given)


def test_answers_are_on_the_disk_at_once_and_go_on(study):
    Answers(study, "ann").put(3, GOOD | {"comment": "ü"})
    again, beside = Answers(study, "ann"), Answers(study, "ann")
    assert again.given == {3: GOOD | {"comment": "ü"}}
    assert again.missing == [1, 2, *range(4, 21)]
    again.put(1, BAD)
    beside.put(3, BAD)  # another window, that had not seen item 1
    assert Answers(study, "ann").given == {1: BAD, 3: BAD}
    assert Answers(study, "bob").given == {}


@pytest.mark.parametrize("answer", [{}, GOOD | {"correct": 2}, GOOD | {"correct": True}, GOOD | {"more": 1}, [1]])
def test_what_is_no_answer_is_not_kept(study, answer):
    answers = Answers(study, "ann")
    with pytest.raises(DataError, match="item 1: "):
        answers.put(1, answer)
    with pytest.raises(DataError, match="no such item"):
        answers.put(21, GOOD)
    assert not answers.path.exists()


def test_answers_belong_to_one_study_and_one_rater(study, sources, tmp_path):
    Answers(study, "ann").put(1, GOOD)
    (study.folder / "answers" / "bob.json").write_bytes((study.folder / "answers" / "ann.json").read_bytes())
    with pytest.raises(DataError, match="of another rater"):
        Answers(study, "bob")
    other = write_study(tmp_path / "other", *sample(sources, 10, seed=5))
    (other.folder / "answers").mkdir()
    (other.folder / "answers" / "ann.json").write_bytes((study.folder / "answers" / "ann.json").read_bytes())
    with pytest.raises(DataError, match="answers to another study"):
        Answers(other, "ann")
    (study.folder / KEY).write_bytes((other.folder / KEY).read_bytes())
    with pytest.raises(DataError, match="is the key of another study"):
        report(study, [Answers(study, "ann")])
    for name in ("../x", "Ann", "", "a b", "-x"):
        with pytest.raises(UsageError, match="small letters"):
            Answers(study, name)


@pytest.mark.parametrize("answers", [None, [GOOD], "x"])
def test_a_damaged_file_of_answers_is_named(study, answers):
    record = Answers(study, "ann")
    record.put(1, GOOD)
    write_json(record.path, json.loads(record.path.read_text()) | {"answers": answers})
    with pytest.raises(DataError, match=r"ann.json: holds no `answers` by number"):
        Answers(study, "ann")


@pytest.mark.parametrize("change", [{"method": None}, {"question_id": [1]}, {"step": "1"}, None])
def test_an_edited_key_is_named(study, change):
    key = json.loads((study.folder / KEY).read_text())
    key["items"][2] = 3 if change is None else key["items"][2] | change
    write_json(study.folder / KEY, key)
    Answers(study, "ann").put(1, GOOD)
    for tell in (report, rows):
        with pytest.raises(DataError, match=r"key.json: item 3: has no (method|question_id|step);"):
            tell(study, [Answers(study, "ann")])


def test_the_report_by_hand(study):
    """Both find alpha good; of beta, ann calls every other one correct and bob none."""
    _judge(study, "ann", lambda number, method: GOOD if method == "alpha" or number % 2 else BAD)
    _judge(study, "bob", lambda number, method: GOOD if method == "alpha" else BAD)
    found = report(study, open_raters(study))
    key = json.loads((study.folder / KEY).read_text())["items"]
    odd = sum(item["method"] == "beta" and number % 2 for number, item in enumerate(key, start=1))
    alpha, beta = found["methods"]["alpha"], found["methods"]["beta"]
    assert alpha["correct_by_both"] == {"of": 10, "questions": 10, "mean": 1.0, "ci": [1.0, 1.0]}
    assert beta["correct_by_both"]["mean"] == 0
    assert beta["correct"]["mean"] == pytest.approx(odd / 20)
    assert beta["reasonable"]["mean"] == pytest.approx((odd * 3 + (10 - odd) * 1) / 10)
    # ann says yes 10 + odd times of 20 and bob 10 times; they differ odd times
    yes = (10 + odd) / 20
    by_chance = yes * 0.5 + (1 - yes) * 0.5
    kappa = (1 - odd / 20 - by_chance) / (1 - by_chance)
    assert found["agreement"]["correct"]["kappa"]["value"] == pytest.approx(kappa)
    assert found["agreement"]["correct"]["agreement"]["value"] == pytest.approx(1 - odd / 20)
    assert alpha["agreement"]["correct"]["kappa"]["reason"].startswith("both gave one and the same answer")
    both = next(row for row in found["comparisons"] if row["measure"] == "correct_by_both")
    assert (both["treatment_method"], both["baseline_method"]) == ("alpha", "beta")
    assert (both["difference"], both["questions"], both["wins"]) == (1, 10, 10)
    assert json.dumps(found, allow_nan=False)
    table = rows(study, open_raters(study))
    assert len(table) == 40
    assert {row["rater"] for row in table} == {"ann", "bob"}
    assert all((row["correct"] == 1) for row in table if row["method"] == "alpha")


def test_nothing_is_unblinded_before_both_are_finished(study):
    with pytest.raises(UsageError, match="raters none; expected two"):
        open_raters(study)
    _judge(study, "ann", lambda number, method: GOOD)
    with pytest.raises(UsageError, match="raters ann; expected two"):
        open_raters(study)
    _judge(study, "bob", lambda number, method: BAD if number > 3 else None)
    with pytest.raises(UsageError, match=r"still to be judged \(bob 3\).*stay hidden.*--partial"):
        open_raters(study)
    found = report(study, open_raters(study, partial=True))
    assert found["missing"] == {"ann": 0, "bob": 3}
    assert sum(row["missing"]["bob"] for row in found["methods"].values()) == 3
    assert sum(row["correct"]["of"] for row in found["methods"].values()) == 17
    assert found["agreement"]["correct"]["kappa"]["value"] == 0
    alone = report(study, open_raters(study, ["ann"], partial=True))
    assert alone["agreement"] is None
    assert "correct_by_both" not in alone["methods"]["alpha"]
    assert alone["methods"]["alpha"]["correct"]["mean"] == 1
    Answers(study, "cy").put(1, GOOD)
    with pytest.raises(UsageError, match="ann, bob, cy; expected two; choose by --rater"):
        open_raters(study, partial=True)
    with pytest.raises(UsageError, match="dan: has not begun; found ann, bob, cy"):
        open_raters(study, ["dan"])
    assert [rater.rater for rater in open_raters(study, ["ann", "cy"], partial=True)] == ["ann", "cy"]


def test_what_nobody_judged_has_no_figures(study):
    Answers(study, "ann").put(1, GOOD)
    Answers(study, "bob").put(2, GOOD)
    found = report(study, open_raters(study, partial=True))
    for row in found["methods"].values():
        assert row["correct_by_both"] == {"of": 0, "questions": 0, "mean": None, "ci": None}
    assert found["agreement"]["reasonable"]["kappa"]["reason"] == "no item was judged by both"
    assert all(row["questions"] == 0 and row["reason"] for row in found["comparisons"])
    assert json.dumps(found, allow_nan=False)
