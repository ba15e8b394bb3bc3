"""Claims that measure the clock or train: their arithmetic on invented results, and short real
runs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from click.testing import CliRunner

from whence.errors import WhenceError
from whence.lab import document, fingerprint
from whence.lab.claim import Claim, Measure, Setting, Verdict
from whence.lab.claims import (
    CLAIMS,
    features,
    generator_for,
    knowledge,
    runs,
    scaling,
    separation,
    trained,
)
from whence.lab.commands import claims as command
from whence.lab.svg import Figure, Line, Panel


def record(name, answer, expected="Oslo", seen=True, probability=0.9):
    return {
        "question": f"Where was {name} born?",
        "name": name,
        "expected": expected,
        "answer": answer,
        "correct": answer == expected,
        "probability": probability,
        "stated": seen,
        "seen": seen,
    }


def people(right, wrong, made_up):
    """So many right and wrong answers about people in the text, and about withheld ones.

    A person's name is a number: whatever the answers, the questions are the same in the same order.
    """
    answers = ["Oslo"] * right + ["Rome"] * wrong
    found = [
        record(f"P{i}", a, probability=0.9 if a == "Oslo" else 0.5) for i, a in enumerate(answers)
    ]
    found += [record(f"M{i}", "Paris", seen=False, probability=0.2) for i in range(made_up)]
    return found


@pytest.fixture
def invented(monkeypatch):
    """Answers as a good, a bad and an untrained model would give them."""
    answers = {
        "softmax": people(70, 30, 20),
        "no-pretraining": people(2, 98, 20),
        "questions-only": people(3, 97, 20),
        "synthesizer": people(30, 70, 20),
    }
    monkeypatch.setattr(knowledge, "answers", lambda system, setting: answers[system])
    monkeypatch.setattr(knowledge, "london", lambda setting: people(4, 96, 20))

    class Made:
        def metrics(self):
            return [
                {"step": 1, "accuracy": 5.0},
                {"step": 2, "loss": 1.0},
                {"step": 3, "accuracy": 58.0},
            ]

    monkeypatch.setattr(knowledge, "trained", lambda system, setting: Made())
    return answers


def verdict(id, **setting):
    return CLAIMS[id].check(generator_for(id, 0), Setting(**setting))


def test_the_knowledge_claims_judge_their_answers(invented):
    assert verdict("know-1").label.startswith("holds if the people are the course's")
    assert verdict("know-2").label == "holds"
    assert verdict("know-3").label == "holds"
    assert verdict("know-4").label == "holds"
    assert verdict("know-5").label == "holds"
    assert verdict("know-8").label == "fails"


def test_the_knowledge_claims_can_come_out_otherwise(invented):
    invented["questions-only"] = people(60, 40, 20)
    assert verdict("know-2").label == "fails"
    assert verdict("know-3").label == "fails"
    for number, one in enumerate(invented["questions-only"]):
        one["answer"] = f"place {number}"
    assert verdict("know-4").label.startswith("holds if training is short")
    invented["synthesizer"] = people(80, 20, 20)
    assert verdict("know-5").label == "fails"
    for one in invented["softmax"]:
        one["probability"] = 0.5
    assert verdict("know-8").label == "holds"


def test_the_ablation_names_what_helped(monkeypatch):
    right = {"full": 80, "window": 40, "random": 10, "window-random": 60, "all-three": 78}
    seeds = []

    def answers(system, setting):
        seeds.append(setting.seed)
        return people(right[system], 100 - right[system], 20)

    monkeypatch.setattr(trained, "answers", answers)
    told = verdict("big-3")
    assert told.label == "holds" and told.samples == 200 and set(seeds) == {0, 1}
    assert "chance: the window, random blocks, the global block; did not: nothing" in told.finding
    right["window-random"] = 39
    told = verdict("big-3")
    assert told.label == "fails" and "did not: random blocks" in told.finding
    right |= {"window-random": 60, "all-three": 65}
    assert verdict("big-3").label == "fails"  # fifteen points behind full attention


def test_agreement_is_held_against_shuffling():
    generator = torch.Generator().manual_seed(0)
    places = [str(number % 5) for number in range(100)]
    share, mixed, chance = knowledge.agreement(places, places, generator)
    assert share == 100 and 15 < mixed < 25 and chance < 0.001
    share, _, chance = knowledge.agreement(places, ["none"] * 100, generator)
    assert share == 0 and chance == 1


def test_an_interruption_says_how_to_go_on(monkeypatch):
    from whence.train import Interrupted

    def stopped(generator, setting):
        raise Interrupted("saved at step 7")

    claim = Claim("slow-1", "Slow", "It is slow.", "nobody", stopped, "expensive")
    monkeypatch.setattr("whence.lab.claims.CLAIMS", {"slow-1": claim})
    result = CliRunner().invoke(command, ["--all"])
    assert result.exit_code == 130
    assert "saved at step 7 in slow-1; the same command goes on" in result.stderr


def test_auroc_counts_pairs():
    assert knowledge.auroc([3, 4], [1, 2]) == 1
    assert knowledge.auroc([1, 2], [3, 4]) == 0
    assert knowledge.auroc([1, 1], [1, 1]) == 0.5
    assert knowledge.auroc([1, 3], [2, 2]) == 0.5
    assert math.isnan(knowledge.auroc([], [1]))


def test_costs_are_judged_by_their_exponents(monkeypatch):
    times = {"softmax": [0.01, 0.04, 0.16, 0.64], "performer": [0.02, 0.04, 0.08, 0.16]}
    sizes = {
        "explicit": {1024: 100, 2048: 400},
        "softmax": {1024: 10, 4096: 40, 8192: 80},
        "performer": {1024: 30, 4096: 120, 8192: 240},
        "bigbird": {1024: 10, 4096: 40, 8192: 80},
    }
    monkeypatch.setattr(scaling, "seconds", lambda name: times[name])
    monkeypatch.setattr(scaling, "memory", lambda name: sizes[name])
    told = verdict("perf-1")
    assert told.label == "holds"
    assert scaling.crossover("performer") == 4096
    assert verdict("big-2").label.startswith("holds if softmax stores its weights")
    times["performer"] = times["softmax"]
    assert verdict("perf-1").label == "fails"


def test_slope_finds_the_exponent():
    assert scaling.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def test_energy_rank():
    matrices = torch.stack([torch.eye(10), torch.ones(10, 10)]).double()
    assert trained.energy_rank(matrices).tolist() == [9, 1]


def test_formulas_of_the_features_at_the_ends():
    x = torch.tensor([1.0] + [0.0] * 15, dtype=torch.float64)
    assert features.theory(x, x, 4)["trig"] == pytest.approx(0, abs=1e-12)
    assert features.theory(x, -x, 4)["positive"] == pytest.approx(0, abs=1e-12)


def test_best_without_looking_is_the_commonest_value():
    found = separation.best_without_looking(torch.Generator().manual_seed(0))
    assert 0.25 < found < 0.45


@pytest.mark.slow
@pytest.mark.parametrize("id", ["know-6", "perf-2"])
def test_short_trainings_come_out_as_expected(id):
    found = verdict(id)
    assert found.label == "holds", found.measures


def small(setting):
    """The recipe of knowledge.toml, over in a moment."""
    from whence.recipe import change

    tiny = {"train.steps": 2, "train.evaluations": 0, "model.width": 32, "corpus.people": 200}
    return change(RECIPE(setting), tiny)


RECIPE = runs.recipe


def test_what_was_trained_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "recipe", small)
    said: list[str] = []
    setting = Setting(cache=tmp_path, report=said.append)
    first = runs.answers("softmax", setting)
    assert len(first) == 100 and sum(one["seen"] is False for one in first) == 60
    assert len(said) == 1 and str(tmp_path) in said[0]
    assert runs.answers("softmax", setting) == first
    assert len(said) == 1  # nothing was trained again
    other = runs.trained("softmax", Setting(seed=1, cache=tmp_path))
    assert other.path != runs.trained("softmax", setting).path
    with pytest.raises(WhenceError, match="no system"):
        runs.trained("sofmax", setting)


def test_a_recipe_is_known_by_what_it_says():
    from whence.recipe import change

    recipe = RECIPE(Setting())
    said = runs.written(recipe)
    assert said["model"]["width"] == 128 and "attention" not in said["model"]
    assert said["stages"][0]["mixture"] == {"picked": 0.8, "questions": 0.2}
    assert runs.written(change(recipe, {"train.steps": 7})) != said


def test_the_course_folder_serves_as_well(monkeypatch, tmp_path, course):
    def tiny(setting):
        from whence.recipe import change

        less = {"corpus.withhold": 2, "train.steps": 2, "train.evaluations": 0, "model.width": 32}
        return change(RECIPE(setting), less)

    monkeypatch.setattr(runs, "recipe", tiny)
    setting = {"corpus": f"course:{course}", "cache": tmp_path}
    for id in ("know-1", "know-2", "know-3", "know-4", "know-5", "know-8", "know-9"):
        found = verdict(id, **setting)
        assert found.samples and found.holds is not None
        assert "The most frequent" not in found.finding  # the course's text stays where it is


def test_every_system_of_the_recipe_is_one_that_can_run():
    from whence.study import system_config

    config = RECIPE(Setting())
    for system in config.study.systems:
        system_config(config, system)
    longer = RECIPE(Setting(corpus="course:somewhere"))
    assert longer.corpus.name == "course:somewhere" and longer.train.steps > config.train.steps


def test_the_cache_is_the_users_unless_another_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert runs.cache_folder(Setting()) == tmp_path / "whence" / "claims"
    assert runs.cache_folder(Setting(cache=tmp_path / "mine")) == tmp_path / "mine"


def test_a_fingerprint_covers_what_a_result_was_made_by(monkeypatch):
    assert fingerprint._rests_on(CLAIMS["know-7"]) == [
        f"whence.lab.{name}"
        for name in (
            "claims.bottleneck",
            "claims.knowledge",
            "claims.runs",
            "claims.scaling",
            "footprint",
        )
    ]
    before = fingerprint.fingerprint(CLAIMS["know-3"])
    texts = fingerprint._text

    def edited(name, more):
        monkeypatch.setattr(
            fingerprint, "_text", lambda asked: texts(asked) + more * (asked == name)
        )
        fingerprint._source.cache_clear()
        return fingerprint.fingerprint(CLAIMS["know-3"])

    assert edited("whence.lab.claims.runs", "\n\n# a remark\n") == before
    assert (
        edited("whence.lab.claims.runs", "\nfrom whence.recipe import (\n    set_value,\n)\n")
        == before
    )
    assert edited("whence.lab.claims.scaling", "\nMORE = 1\n") == before
    assert edited("whence.lab.claims.runs", "\nMORE = 1\n") != before
    fingerprint._source.cache_clear()


def test_results_that_are_not_made_each_time_stay_in_the_record(monkeypatch, tmp_path):
    calls = []

    def slow(generator, setting):
        calls.append(setting.corpus)
        figure = Figure("a picture", [Panel("t", "x", "y", [Line([1, 2], [1, 2])])])
        return Verdict(True, (Measure("seconds", 1.5), Measure("none", math.nan)), 3, figure=figure)

    some = {
        "copy-1": CLAIMS["copy-1"],
        "slow-1": Claim("slow-1", "Slow", "It is slow.", "nobody", slow, "expensive"),
    }
    monkeypatch.setattr("whence.lab.claims.CLAIMS", some)
    path = tmp_path / "claims.md"

    def invoke(*arguments):
        return CliRunner().invoke(command, [*arguments])

    assert invoke("--write", str(path)).exit_code == 0 and not calls
    assert "Not run yet: `whence claims slow-1`" in path.read_text()
    unfinished = invoke("--check", str(path))
    assert unfinished.exit_code == 1 and "slow-1: it was never run" in unfinished.stderr
    assert invoke("--all", "--write", str(path)).exit_code == 0 and calls == ["world"]
    assert invoke("slow-1", "--corpus", "course:x", "--write", str(path)).exit_code == 0
    text = path.read_text()
    assert text.count("a picture") == 4  # a caption and an alternative text for each corpus
    assert "--corpus course:FOLDER" in text and "course:x" not in text
    assert (tmp_path / "figures" / "claims" / "slow-1-course.svg").exists()
    assert invoke("--write", str(path)).exit_code == 0 and len(calls) == 2
    assert path.read_text() == text
    assert invoke("--check", str(path)).exit_code == 0 and len(calls) == 2
    record = json.loads(document.record_path(path).read_text())
    assert set(record["slow-1"]) == {"world", "course"}
    changed = Claim("slow-1", "Slow", "It is very slow.", "nobody", slow, "expensive")
    monkeypatch.setitem(some, "slow-1", changed)
    stale = invoke("--check", str(path))
    assert stale.exit_code == 1 and "slow-1: its check or recipe has changed" in stale.stderr
    document.record_path(path).write_text('{"slow-1": {"world": {}}}')
    damaged = invoke("--check", str(path))
    assert isinstance(damaged.exception, WhenceError)
