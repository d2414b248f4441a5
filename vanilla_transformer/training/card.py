"""The model card: what is known of a trained model, for people and for the Hub."""

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vanilla_transformer.training.recipe import Recipe

if TYPE_CHECKING:
    from vanilla_transformer.training.finish import Summary

TEMPLATE = Path(__file__).with_name("model_card.md")


def write_model_card(
    directory: Path, recipe: Recipe, summary: "Summary", languages: tuple[str | None, str | None]
) -> None:
    """Writes README.md: nothing in it is guessed, and what is not known is left out."""
    title = directory.resolve().name
    known = [language for language in languages if language]
    card_data = ModelCardData(
        language=known or None,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla_transformer", "attention-is-all-you-need"],
        metrics=sorted({score.name for scores in summary.scores.values() for score in scores}) or None,
        model_name=title,
        eval_results=_eval_results(recipe, summary),
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        title=title,
        version=version("vanilla_transformer"),
        languages=f"{languages[0]} to {languages[1]}" if len(known) == 2 else "",
        example=json.dumps(recipe.examples[0] if recipe.examples else "...", ensure_ascii=False),
        scores=[
            {
                "data": _name(getattr(recipe, part)),
                "metric": score.name,
                "value": f"{score.value:.2f}",
                "signature": score.signature.replace("|", r"\|"),  # Not the end of a cell.
            }
            for part, scores in summary.scores.items()
            for score in scores
        ],
        data=_data_lines(recipe, summary),
        training=_training_lines(recipe, summary),
        recipe=_without_places(recipe).to_yaml().strip(),
    )
    card.save(directory / "README.md")


def _eval_results(recipe: Recipe, summary: "Summary") -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation",
            dataset_type=_name(getattr(recipe, part)),
            dataset_name=_name(getattr(recipe, part)),
            dataset_split=part,
            metric_type=score.name,
            metric_name=score.name,
            metric_value=round(score.value, 2),
            metric_args={"signature": score.signature},
        )
        for part, scores in summary.scores.items()
        for score in scores
    ]


def _data_lines(recipe: Recipe, summary: "Summary") -> list[str]:
    lines = [f"Trained on {_name(recipe.train)}: {summary.pairs:,} pairs after leaving out empty and over-long ones."]
    lines += [f"{part}: {_name(getattr(recipe, part))}." for part in ("dev", "test") if getattr(recipe, part)]
    return lines


def _training_lines(recipe: Recipe, summary: "Summary") -> list[str]:
    lines = [
        f"{summary.parameters:,} parameters: {recipe.encoder_layers}+{recipe.decoder_layers} layers of width "
        f"{recipe.d_model}, {recipe.num_heads} heads, vocabulary {recipe.vocab_size:,}.",
        f"{summary.steps:,} steps, {summary.epochs:.1f} epochs, {summary.target_tokens:,} target tokens, "
        f"{summary.flops:.2e} floating-point operations.",
        f"{summary.seconds / 60:.1f} minutes on {summary.device} in {summary.precision}.",
        f"The weights are the mean of the checkpoints of steps {', '.join(map(str, summary.averaged_steps))}.",
    ]
    if summary.best_dev_nll is not None:
        lines.append(
            f"Loss on dev: {summary.last_dev_nll:.4f} nats a target token at the end, {summary.best_dev_nll:.4f} at "
            f"best (step {summary.best_dev_step:,}), before averaging."
        )
    return lines


def _without_places(recipe: Recipe) -> Recipe:
    train, dev, test = (_names(source) for source in (recipe.train, recipe.dev, recipe.test))
    return dataclasses.replace(recipe, train=train, dev=dev, test=test, output=None)


def _name(source: tuple[str, ...]) -> str:
    return " and ".join(_names(source))


def _names(source: tuple[str, ...]) -> tuple[str, ...]:
    """A corpus by its names; where a file lies on the machine that trained says nothing to others."""
    return tuple(Path(part).name if Path(part).exists() else part for part in source)
