"""A checkpoint of somebody else gives the same predictions, and ours load where theirs do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from course_folder import SHAPE, Folder, train_textbook

import textbook

VARIANTS = ("vanilla", "rope", "perceiver", "synthesizer")
Trained = Callable[[str], tuple[textbook.TextbookGPT, Path]]
Whence = Callable[..., Result]


def evaluate(whence: Whence, folder: Folder, variant: str, checkpoint: Path) -> list[str]:
    """The lines of the prediction file for the questions without answers."""
    outputs = folder.path / "predictions"
    result = whence(
        *("evaluate", variant, folder.corpus, "--reading_params_path", checkpoint),
        *("--eval_corpus_path", folder.test, "--outputs_path", outputs),
    )
    assert f"Predictions written to {outputs}; no targets provided" in result.stdout
    return outputs.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_predictions_as_the_program_that_wrote_it(
    variant: str, trained: Trained, folder: Folder, whence: Whence
) -> None:
    model, checkpoint = trained(variant)
    expected = [
        textbook.answer(model, folder.vocabulary, question)
        for question in folder.questions(folder.test)
    ]
    assert len(set(expected)) > 1  # a model that says one thing to everybody proves little
    assert evaluate(whence, folder, variant, checkpoint) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_whence_writes_loads_strictly_and_answers_the_same(
    variant: str, trained: Trained, folder: Folder, whence: Whence
) -> None:
    _, checkpoint = trained(variant)
    written = folder.path / "finetuned.params"
    whence(
        *("finetune", variant, folder.corpus, "--reading_params_path", checkpoint),
        *("--writing_params_path", written, "--finetune_corpus_path", folder.train),
        *("--steps", "3", "--threads", "1"),
    )
    shape = textbook.Shape(vocabulary=len(folder.vocabulary), variant=variant, **SHAPE)
    model = textbook.TextbookGPT(shape)
    model.load_state_dict(torch.load(written, weights_only=True), strict=True)
    before = torch.load(checkpoint, weights_only=True)
    assert not torch.equal(model.head.weight, before["head.weight"])  # it did train
    expected = [
        textbook.answer(model.eval(), folder.vocabulary, question)
        for question in folder.questions(folder.test)
    ]
    assert evaluate(whence, folder, variant, written) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_new_model_has_the_courses_layout(variant: str) -> None:
    from whence.course.loading import new_model
    from whence.course.translation import course_state

    ours = course_state(new_model(variant, vocabulary=256, bottleneck=32, seed=0))
    theirs = textbook.TextbookGPT(textbook.Shape(variant=variant)).state_dict()
    assert {name: t.shape for name, t in ours.items()} == {
        name: t.shape for name, t in theirs.items()
    }
    counts = {"vanilla": 3_323_392, "synthesizer": 3_076_988}
    if variant in counts:
        model = new_model(variant, vocabulary=256, bottleneck=32, seed=0)
        assert model.parameter_count() == counts[variant]


def test_loss_and_logits_agree_with_the_textbook(trained: Trained, folder: Folder) -> None:
    from whence.course.loading import load_model
    from whence.course.material import CourseText

    tokens = torch.randint(1, len(folder.vocabulary), (3, 40), generator=torch.manual_seed(0))
    for variant in VARIANTS:
        model, checkpoint = trained(variant)
        ours = load_model(checkpoint, variant, None, CourseText(folder.corpus), folder.train, print)
        with torch.no_grad():
            torch.testing.assert_close(ours(tokens), model(tokens), atol=2e-4, rtol=1e-4)


def renamed(state: dict[str, torch.Tensor], rules: dict[str, str]) -> dict[str, torch.Tensor]:
    result = {}
    for name, tensor in state.items():
        for old, new in rules.items():
            name = name.replace(old, new)
        result[name] = tensor
    return result


@pytest.mark.parametrize(
    ("variant", "rules"),
    [
        ("vanilla", {"tok_emb": "module.tok_emb", "blocks": "module.blocks"}),
        ("vanilla", {"ln1": "norm1", "ln2": "norm2", ".proj.": ".c_proj."}),
        ("perceiver", {"cross_attn": "attn", "up_block": "up_proj_block"}),
        ("perceiver", {"down_block.C": "down_block.queries"}),
        ("vanilla", {".attn.mask": ".attn.mask"}),
        ("vanilla", {"attn.query": "attn.W_Q", "attn.key": "attn.to_k", "attn.proj": "attn.out"}),
        ("vanilla", {"tok_emb": "net.tok_embed", "pos_emb": "pos_embed", "ln_f": "final_norm"}),
        ("vanilla", {"mlp.0": "mlp.net.linear1", "mlp.2": "mlp.net.linear2", ".mask": ".tril"}),
        ("synthesizer", {"attn.w1": "attn.W1", "attn.w2": "attn.W_2", "attn.b2": "attn.B2"}),
        ("perceiver", {"cross_attn": "cross", "blocks.0.attn.mask": "blocks.0.attn.causal_mask"}),
        ("rope", {"rope_cache": "rotary_cache"}),
    ],
)
def test_other_names_for_the_same_roles(
    variant: str, rules: dict[str, str], trained: Trained, folder: Folder, whence: Whence
) -> None:
    _, checkpoint = trained(variant)
    state = renamed(torch.load(checkpoint, weights_only=True), rules)
    torch.save({"state_dict": state}, folder.path / "renamed.params")
    expected = evaluate(whence, folder, variant, checkpoint)
    assert evaluate(whence, folder, variant, folder.path / "renamed.params") == expected


def test_without_buffers_and_in_half_precision(
    trained: Trained, folder: Folder, whence: Whence
) -> None:
    _, checkpoint = trained("rope")
    state = torch.load(checkpoint, weights_only=True)
    bare = {n: t for n, t in state.items() if not n.endswith((".mask", ".rope_cache"))}
    # The head's number cannot be read off such a file; the course's 8 is taken.
    torch.save(bare, folder.path / "bare.params")
    shorter = {n: t.bfloat16() for n, t in bare.items()}
    torch.save(shorter, folder.path / "half.params")
    expected = evaluate(whence, folder, "rope", checkpoint)
    assert evaluate(whence, folder, "rope", folder.path / "bare.params") == expected
    evaluate(whence, folder, "rope", folder.path / "half.params")


@pytest.mark.parametrize("containers", [["model", "state_dict"], ["params"], ["net", "model"]])
def test_weights_inside_other_things(
    containers: list[str], trained: Trained, folder: Folder, whence: Whence
) -> None:
    _, checkpoint = trained("vanilla")
    content = torch.load(checkpoint, weights_only=True)
    for name in containers:
        content = {name: content, "epoch": 3}
    torch.save(content, folder.path / "inside.params")
    expected = evaluate(whence, folder, "vanilla", checkpoint)
    assert evaluate(whence, folder, "vanilla", folder.path / "inside.params") == expected


def test_a_file_that_holds_itself(folder: Folder, whence: Whence) -> None:
    content: dict[str, object] = {}
    content["model"] = content
    torch.save(content, folder.path / "circle.params")
    command = ("evaluate", "vanilla", folder.corpus, "--eval_corpus_path", folder.dev)
    weights = ("--reading_params_path", folder.path / "circle.params", "--outputs_path", "out")
    result = whence(*command, *weights, code=2)
    assert "holds no state dict: 'model' is not a tensor" in result.stderr


def longer(table: torch.Tensor) -> torch.Tensor:
    """Rotations of twice as many positions."""
    angles = torch.atan2(table[1, :, 1], table[1, :, 0]) * torch.arange(2 * len(table))[:, None]
    return torch.stack((angles.cos(), angles.sin()), -1)


BUFFERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "complex": lambda table: torch.view_as_complex(table.contiguous()),
    "for a batch": lambda table: table[None],
    "bfloat16": lambda table: table.bfloat16(),
    "longer": longer,
}


@pytest.mark.parametrize("form", BUFFERS)
def test_rotations_and_masks_of_other_shapes(
    form: str, trained: Trained, folder: Folder, whence: Whence
) -> None:
    """Tables that are made from the shape, not trained: only what they say matters."""
    _, checkpoint = trained("rope")
    state = torch.load(checkpoint, weights_only=True)
    for name, tensor in state.items():
        if name.endswith(".mask"):
            state[name] = tensor[0, 0]
        if name.endswith(".rope_cache"):
            state[name] = BUFFERS[form](tensor)
    torch.save(state, folder.path / "tables.params")
    from whence.course.checkpoint import model_config, read_checkpoint

    assert model_config(read_checkpoint(folder.path / "tables.params")).context == SHAPE["block"]
    expected = evaluate(whence, folder, "rope", checkpoint)
    assert evaluate(whence, folder, "rope", folder.path / "tables.params") == expected


def test_the_wiring_that_is_better_example_by_example_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four per cent of the loss, and always: not what the handout's form is forgiven."""
    from whence.course import perceiver

    generator = torch.Generator().manual_seed(0)
    level, noise = torch.rand(32, generator=generator) + 1, torch.randn(32, generator=generator)
    true = perceiver.Form(perceiver.SIDES[3], perceiver.SIDES[5])

    def choose(handout: torch.Tensor) -> perceiver.Form:
        def losses(
            model: object, examples: object, forms: list[perceiver.Form]
        ) -> dict[perceiver.Form, list[torch.Tensor]]:
            known = {perceiver.HANDOUT: [handout], true: [level]}
            return {form: known.get(form, [level + 2]) for form in forms}

        monkeypatch.setattr(perceiver, "losses", losses)
        return perceiver.choose_form(None, [])[0]  # type: ignore[arg-type]

    assert choose(level + 0.06 + 0.01 * noise) == true
    assert choose(level + 0.06 + 0.5 * noise) == perceiver.HANDOUT  # may as well be chance
    assert choose(level + 0.005) == perceiver.HANDOUT  # hardly trained: all are alike
    assert choose(level - 0.1) == perceiver.HANDOUT


def test_a_question_longer_than_the_window(trained: Trained, folder: Folder) -> None:
    from whence.course.evaluation import predict
    from whence.course.loading import load_model
    from whence.course.material import CourseText

    model, checkpoint = trained("vanilla")
    text = CourseText(folder.corpus)
    ours = load_model(checkpoint, "vanilla", None, text, None, print)
    questions = ["Where was " + "Ada " * repeats + "born?" for repeats in (1, 4, 6, 9, 12, 14, 30)]
    expected = [textbook.answer(model, folder.vocabulary, question) for question in questions]
    assert predict(ours, text.vocab, questions) == expected


class Rewired(textbook.TextbookGPT):
    """A perceiver as another student wired it: no residuals around the attention."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.tok_emb(ids) + self.pos_emb[:, : ids.shape[1]])
        down, up = self.down_block, self.up_block
        y = down.cross_attn(down.ln1(down.C), source=down.ln1(x))
        y = self.blocks(y + down.mlp(down.ln2(y)))
        x = up.cross_attn(up.ln1(x), source=up.ln1(y))
        return self.head(self.ln_f(x + up.mlp(up.ln2(x))))


def test_a_bad_file_that_nobody_named_stops_no_perceiver(
    folder: Folder, whence: Whence, trained: Trained
) -> None:
    path = trained("perceiver")[1]
    expected = evaluate(whence, folder, "perceiver", path)
    folder.train.write_text("Where was Ωmega born?\tRome\n", encoding="utf-8")
    assert evaluate(whence, folder, "perceiver", path) == expected


@pytest.mark.slow
def test_a_perceiver_that_was_wired_differently(folder: Folder, whence: Whence) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        shape = textbook.Shape(vocabulary=len(folder.vocabulary), variant="perceiver", **SHAPE)
        model = train_textbook(Rewired(shape), folder, steps=300)
    path = folder.path / "rewired.params"
    torch.save(model.state_dict(), path)
    expected = [
        textbook.answer(model, folder.vocabulary, question)
        for question in folder.questions(folder.test)
    ]
    assert evaluate(whence, folder, "perceiver", path) == expected
