"""The training loop: read a recipe, train, and write a checkpoint folder in the published layout.

During the run the folder holds `checkpoint.pt` and `log.jsonl`; afterwards it holds the weights (bfloat16),
the tokenizer, the recipe and the log. Scripts that call `train` with worker processes need the usual
`if __name__ == "__main__":` guard.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from unmask.errors import FieldError
from unmask.models.checkpoint.load import pick_device
from unmask.models.checkpoint.save import save
from unmask.models.trunk import Trunk
from unmask.training.data import Position
from unmask.training.loader import Batch, Loader, StreamSpec
from unmask.training.masking import corrupt, step
from unmask.training.objective import diffusion_loss, loss_scale, token_losses
from unmask.training.recipe import Recipe, read_recipe
from unmask.training.setup import make_model, token_weights

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
LOG = "log.jsonl"
VALIDATION_RATES = (0.15, 0.5, 0.85, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of the log."""

    step: int  # steps taken
    progress: float  # share of the run
    elapsed: float  # seconds, including earlier parts of a resumed run
    loss: float  # mean since the last record
    lr: float
    tokens_per_second: float
    validation: Mapping[str, float] = field(default_factory=dict)  # mask rate -> cross-entropy of the answers
    probe: Mapping[str, float] = field(default_factory=dict)


Watch = Callable[[Record], None]  # called with every record
Probe = Callable[[Trunk], Mapping[str, float]]  # called at every validation with the model in eval mode


def train(
    recipe: Path,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
    probe: Probe | None = None,
) -> Record:
    """Train from a recipe file into the folder `out`, and return the last record."""
    checkpoint = out / CHECKPOINT
    if checkpoint.exists() and not resume:
        raise ValueError(f"{out} holds an interrupted run; resume it, or choose an empty folder")
    weights = list(out.glob("*.safetensors*"))
    if weights and not checkpoint.exists():
        raise ValueError(f"{out} already holds weights; choose an empty folder")
    for file in weights:  # the run was killed while it saved them
        file.unlink()
    trainer = Trainer(read_recipe(recipe), out, device=pick_device(device))
    if checkpoint.exists():
        trainer.restore()
    last = trainer.run(watch=watch, probe=probe)
    trainer.finish()
    shutil.copyfile(recipe, out / f"recipe{recipe.suffix}")
    return last


class Trainer:
    """A training run and its state."""

    def __init__(self, recipe: Recipe, out: Path, *, device: torch.device) -> None:
        self.recipe = recipe
        self.out = out
        self.device = device
        self.step = 0
        self.elapsed = 0.0
        self.model = make_model(recipe.model, seed=recipe.seed, device=device)
        self.optimizers = recipe.optimizer.build(self.model)
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters] if recipe.run.ema else []
        assert self.model.tokenizer is not None
        assert self.model.folder is not None
        by_token = token_weights(recipe.weights, self.model.tokenizer, vocab_size=self.model.info.vocab_size)
        self.by_token = None if by_token is None else by_token.to(device)
        self.stream = StreamSpec(
            data=recipe.data,
            tokenizer=str(self.model.folder),
            seed=recipe.seed,
            batch_size=recipe.run.batch_size,
            total=recipe.schedule.steps * recipe.run.batch_size,
        )
        self.positions: list[Position] | None = None
        self.turn = 0
        precision = recipe.run.precision
        self.bfloat16 = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.loss_of = diffusion_loss
        out.mkdir(parents=True, exist_ok=True)

    def run(self, *, watch: Watch | None = None, probe: Probe | None = None) -> Record:
        """Train until the schedule is over."""
        if self.recipe.run.compile:
            for layer in self.model.layers:  # one graph per row length, shared by all layers but the first
                layer.compile(dynamic=False)
            self.loss_of = torch.compile(diffusion_loss, dynamic=False)
        validation = self.stream.validation(self.device)
        with Loader(self.stream, self.device, positions=self.positions, turn=self.turn) as loader:
            return self._loop(loader, validation, watch, probe)

    def _loop(
        self, loader: Loader, validation: list[Batch], watch: Watch | None, probe: Probe | None
    ) -> Record:
        plan, schedule = self.recipe.run, self.recipe.schedule
        meter = Meter(self.device)
        batch = next(loader)
        started = monotonic() - self.elapsed  # the start of the workers does not count
        while True:
            factor = schedule.factor(self.step, schedule.progress(self.step, self.elapsed))
            meter.add(self.train_step(batch, factor), batch)
            self.step += 1
            self.elapsed = monotonic() - started
            progress = schedule.progress(self.step, self.elapsed)
            over = progress >= 1
            validate = over or self.step % plan.validate_every == 0
            if validate or self.step % plan.log_every == 0:
                loss, speed = meter.read()
                record = Record(
                    step=self.step,
                    progress=round(progress, 6),
                    elapsed=round(monotonic() - started, 3),
                    loss=loss,
                    lr=self.recipe.optimizer.lr * factor,
                    tokens_per_second=round(speed),
                    validation=self.validate(validation) if validate else {},
                    probe=self._probe(probe) if validate and probe is not None else {},
                )
                self._log(record, watch)
                meter.restart()
            if over:
                return record
            if self.step % plan.checkpoint_every == 0:
                self.positions, self.turn = list(loader.positions), loader.turn
                self.checkpoint()
            batch = next(loader)

    def train_step(self, batch: Batch, factor: float) -> Tensor:
        """Do one update with learning rates times `factor`. Return the loss, still on the device."""
        total = torch.zeros((), device=self.device)
        parts = batch.split(self.recipe.run.micro_batches)
        for part in parts:
            loss = self.loss(part) / len(parts)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if self.recipe.optimizer.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.optimizer.max_grad_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - self.recipe.run.ema)
        return total

    def loss(self, batch: Batch) -> Tensor:
        """Compute the training objective on freshly masked rows."""
        corrupted = corrupt(
            batch.tokens,
            prompts=batch.prompts,
            answers=batch.answers,
            masking=self.recipe.masking,
            mask_id=self.model.info.mask_id,
            generator=self.generator,
        )
        targets, region = batch.tokens[:, batch.window], canvas_mask(batch)[:, batch.window]
        scale = loss_scale(
            corrupted.masked[:, batch.window],
            rate=corrupted.rate,
            region=region,
            weight=self.recipe.weights.of(targets, answers=batch.answers, by_token=self.by_token),
        )
        with self._autocast():
            logits = self.model(corrupted.tokens, None, batch.window, None)
        return self.loss_of(logits, targets, scale)

    @torch.no_grad()
    def validate(self, batches: list[Batch]) -> dict[str, float]:
        """Return the cross-entropy of masked answer tokens, without tails, at fixed mask rates and masks."""
        self.model.eval()
        losses = {}
        with torch.compiler.set_stance("force_eager"), self._autocast():  # new shapes are not worth compiling
            for rate in VALIDATION_RATES:
                generator = torch.Generator(self.device).manual_seed(self.recipe.seed)
                total, count = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
                for batch in batches:
                    noisy = step(batch.tokens, rate, mask_id=self.model.info.mask_id, generator=generator)
                    noisy = torch.where(canvas_mask(batch), noisy, batch.tokens)
                    counted = ((noisy != batch.tokens) & answer_mask(batch))[:, batch.window]
                    logits = self.model(noisy, None, batch.window, None)
                    total += (token_losses(logits, batch.tokens[:, batch.window]) * counted).sum()
                    count += counted.sum()
                losses[f"{rate:g}"] = round((total / count.clamp(min=1)).item(), 5)
        self.model.train()
        return losses if batches else {}

    def checkpoint(self) -> None:
        """Write everything a killed run needs to resume exactly."""
        state = {
            "recipe": repr(self.recipe),
            "step": self.step,
            "elapsed": self.elapsed,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "average": self.average,
            "generator": self.generator.get_state(),
            "positions": self.positions,
            "turn": self.turn,
        }
        fresh = self.out / f"{CHECKPOINT}.new"
        torch.save(state, fresh)
        fresh.replace(self.out / CHECKPOINT)  # a run killed while writing keeps the old checkpoint

    def restore(self) -> None:
        """Resume from the folder's checkpoint."""
        state: dict[str, Any] = torch.load(self.out / CHECKPOINT, map_location=self.device, weights_only=True)
        if state["recipe"] != repr(self.recipe):
            raise ValueError(f"{self.out / CHECKPOINT} belongs to another recipe; choose an empty folder")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.average = state["average"]
        self.generator.set_state(state["generator"].cpu())
        self.step, self.elapsed = state["step"], state["elapsed"]
        self.positions, self.turn = state["positions"], state["turn"]
        log = self.out / LOG
        kept = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= self.step]
        log.write_text("".join(f"{line}\n" for line in kept))
        logger.info("resumed %s at step %d", self.out, self.step)

    @torch.no_grad()
    def finish(self) -> None:
        """Save the trained model and remove the checkpoint."""
        for p, average in zip(self.parameters, self.average, strict=bool(self.average)):
            p.copy_(average)
        self.model.to(torch.bfloat16).requires_grad_(False).eval()
        save(self.model, self.out)
        (self.out / CHECKPOINT).unlink(missing_ok=True)
        logger.info("saved %s", self.out)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16)

    def _probe(self, probe: Probe) -> Mapping[str, float]:
        self.model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), self._autocast():
            measured = probe(self.model)
        self.model.train()
        return measured

    def _log(self, record: Record, watch: Watch | None) -> None:
        with (self.out / LOG).open("a") as file:
            file.write(
                json.dumps({name: value for name, value in asdict(record).items() if value != {}}) + "\n"
            )
        if watch is not None:
            watch(record)
        if not record.loss < float("inf"):
            problem = f"makes the loss {record.loss} at step {record.step}"
            raise FieldError("optimizer.lr", self.recipe.optimizer.lr, problem, "lower it")


class Meter:
    """Mean loss and speed since the last record; `read` waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        self._total = torch.zeros((), device=self._device)
        self._steps = self._tokens = 0
        self._started = monotonic()

    def add(self, loss: Tensor, batch: Batch) -> None:
        self._total += loss
        self._steps += 1
        self._tokens += batch.tokens.numel()

    def read(self) -> tuple[float, float]:
        """Return the mean loss, and tokens per second including prompts and tails."""
        loss = self._total.item() / self._steps
        return loss, self._tokens / (monotonic() - self._started)


def canvas_mask(batch: Batch) -> Tensor:
    """Return the columns after the prompt, [B, N] bool."""
    return torch.arange(batch.tokens.shape[1], device=batch.tokens.device) >= batch.prompts[:, None]


def answer_mask(batch: Batch) -> Tensor:
    """Return the columns of the answer and its first end token, [B, N] bool."""
    column = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return canvas_mask(batch) & (column < (batch.prompts + batch.answers)[:, None])
