"""The model `unmask` of lm-evaluation-harness: its three kinds of requests on a masked diffusion model."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from torch import nn
from tqdm import tqdm

from unmask.catalog import DEFAULT_SAMPLER_NAME
from unmask.errors import FieldError, flag, whole
from unmask.evals.gen_kwargs import default_config, request_config, value_of
from unmask.evals.likelihood import DRAWS, Pair, greedily_decoded, log_likelihoods
from unmask.fast.load import is_compiled, load_model
from unmask.models.quantized.linear import QuantizedLinear
from unmask.samplers import make_sampler
from unmask.text.config import GenerationConfig
from unmask.text.generate import generate
from unmask.text.prompts import TextModel, device_of, tokenizer_of
from unmask.types import Sampler

logger = logging.getLogger(__name__)

DEFAULT_DEVICE = "cuda:0"  # lm-eval passes this if no device was named
# arguments of the model itself; all others are settings of GenerationConfig
ARGUMENTS = (
    *("pretrained", "sampler", "device", "dtype", "compile", "batch_size", "max_length", "mc_num"),
    *("check_greedy", "add_bos_token"),
)
SAMPLER_FIELD = "sampler."  # sampler.max_jsd=0.05 changes a field of the sampler


@dataclass(frozen=True, slots=True)
class _TextRequest:
    """One text to generate."""

    index: int  # place in the list of requests
    ids: tuple[int, ...]
    config: GenerationConfig
    seed: int


@register_model("unmask")
class UnmaskLM(TemplateLM):  # type: ignore[misc]
    """A masked diffusion model for lm-eval; docs/lm-eval.md lists the arguments."""

    def __init__(
        self,
        pretrained: str | Path | TextModel,
        *,
        sampler: str | Sampler = DEFAULT_SAMPLER_NAME,
        device: str = "auto",
        dtype: str = "auto",
        compile: bool = False,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,  # lm-eval passes it; there is no automatic batch size here
        max_length: int | None = None,  # tokens of context and answer together; None: the model's limit
        mc_num: int = DRAWS,
        check_greedy: bool = True,
        add_bos_token: bool = False,
        trust_remote_code: bool = False,  # lm-eval passes it; no remote code is ever run
        **settings: Any,
    ) -> None:
        super().__init__()
        changes = {name: settings.pop(name) for name in list(settings) if name.startswith(SAMPLER_FIELD)}
        self.config = default_config({"seed": 0, **settings}, [*ARGUMENTS, f"{SAMPLER_FIELD}FIELD"])
        self.sampler = _sampler(sampler, changes)
        self.batch_size = _batch_size(batch_size)
        whole("mc_num", mc_num, 1)
        self.mc_num = mc_num
        self.check_greedy = check_greedy
        self.add_bos_token = add_bos_token
        self.model, self.name = _open(pretrained, device=device, dtype=dtype, compile=compile)
        self.tokenizer = tokenizer_of(self.model)
        self.max_length = _max_length(max_length, self.model.info.max_length)
        self.spent: Counter[str] = Counter()  # number of generated texts, their steps and forwards
        self._device = device_of(self.model)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> UnmaskLM:
        """Make the model from "pretrained=...,sampler=first-mask,steps=64"."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> UnmaskLM:
        """Make the model from arguments by name, which override lm-eval's own options of the same name."""
        options = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if options.get("device") == DEFAULT_DEVICE and not torch.cuda.is_available():
            options["device"] = "auto"  # lm-eval's default; an explicit device belongs in model_args
        if "pretrained" not in arg_dict:
            remedy = "add pretrained=FOLDER or pretrained=OWNER/NAME"
            raise FieldError("model_args", arg_dict, "must name a checkpoint", remedy)
        return cls(**{**options, **arg_dict})

    @property
    def eot_token_id(self) -> int:
        """Return the token that ends a text."""
        return self.model.info.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """Return the context of a text without one: the beginning-of-text token, else the end token."""
        bos = self.tokenizer.special.bos
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Return the name of the chat template in lm-eval's request cache."""
        return self.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return settings and costs for lm-eval's results file."""
        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        weights = list(self.model.parameters()) if isinstance(self.model, nn.Module) else []
        narrow = sum(each.inputs * each.outputs for each in modules if isinstance(each, QuantizedLinear))
        return {
            "model_num_parameters": sum(weight.numel() for weight in weights) + narrow,
            "model_dtype": str(weights[0].dtype) if weights else None,
            "compile": is_compiled(self.model),
            "sampler": str(self.sampler),
            "generation": asdict(self.config),
            "mc_num": self.mc_num,
            "spent": dict(self.spent),
        }

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation as text; without a generation prompt, its last message is left open."""
        render = getattr(self.tokenizer, "render_chat", None)
        if render is None:
            raise ValueError("the model's tokenizer renders no chats; leave --apply_chat_template out")
        text: str = render(chat_history, add_generation_prompt=add_generation_prompt)
        return text if add_generation_prompt else _until_message(text, chat_history[-1]["content"])

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode a text; add a beginning-of-text token only if `add_bos_token` is set and there is none."""
        ids: list[int] = self.tokenizer.encode(string)
        bos = self.tokenizer.special.bos
        if self.add_bos_token and add_special_tokens is not False and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text of every request, cut before its stop strings."""
        texts = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate_until") as bar:
            for batch in self._batches(self._text_requests(requests)):
                config = replace(batch[0].config, seed=tuple(one.seed for one in batch))
                answers = generate(self.model, [one.ids for one in batch], self.sampler, config)
                for one, answer in zip(batch, answers, strict=True):
                    texts[one.index] = answer.text
                    self.cache_hook.add_partial("generate_until", requests[one.index].args, answer.text)
                self.spent.update(
                    texts=len(answers),
                    steps=sum(answer.steps for answer in answers),
                    forwards=sum(answer.forwards for answer in answers),
                )
                bar.update(len(batch))
        return texts

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the bound on the log-likelihood of whole texts; long ones are scored in windows."""
        totals = []
        for request in tqdm(requests, disable=disable_tqdm, desc="loglikelihood_rolling"):
            total = sum(self._bounds(list(self._windows(request.args[0])), paired=False))
            totals.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Return the bound of every request, and whether greedy unmasking writes the answer."""
        pairs = [self._pair(*request) for request in requests]
        # answers of the same length share their forwards
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i].answer), -len(pairs[i].context)))
        scores: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(pairs), disable=disable_tqdm, desc="loglikelihood") as bar:
            for places in _chunks(order, self.batch_size):
                chunk = [pairs[i] for i in places]
                for i, bound, greedy in zip(places, self._bounds(chunk), self._greedy(chunk), strict=True):
                    scores[i] = bound, greedy
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], scores[i])
                bar.update(len(places))
        return [scores[i] for i in range(len(pairs))]

    def _bounds(self, pairs: Sequence[Pair], *, paired: bool = True) -> list[float]:
        return log_likelihoods(
            self.model,
            pairs,
            draws=self.mc_num,
            seed=self.config.seeds(1)[0],
            paired=paired,
            guidance=self.config.guidance,
            batch_size=self.batch_size,
        )

    def _greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        if not self.check_greedy:
            return [False] * len(pairs)
        return greedily_decoded(self.model, pairs, guidance=self.config.guidance, batch_size=self.batch_size)

    def _windows(self, text: str) -> Iterator[Pair]:
        """Split a text into windows that the model can read, each with the tokens before it that fit."""
        windows = get_rolling_token_windows(
            self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,  # the context token is on the canvas too
            context_len=1,
        )
        for window in windows:
            context, answer = make_disjoint_window(window)
            yield Pair(tuple(context), tuple(answer))

    def _pair(self, texts: tuple[str, str], context: list[int], answer: list[int]) -> Pair:
        if not answer:
            raise ValueError(
                f"the continuation {texts[1]!r} has no tokens of its own after its context; "
                "give it at least one character that is not merged into the context"
            )
        if len(answer) >= self.max_length:
            raise ValueError(
                f"a continuation has {len(answer)} tokens, but context and continuation together may have "
                f"{self.max_length}; leave it out with --limit or --samples, or raise max_length"
            )
        return Pair(tuple(self._cut(context or [self.prefix_token_id], len(answer))), tuple(answer))

    def _text_requests(self, requests: Sequence[Instance]) -> Iterator[_TextRequest]:
        """Yield the texts to generate; a repeated request gets the next seed."""
        seen: Counter[tuple[tuple[int, ...], GenerationConfig]] = Counter()
        overruled = False
        for index, request in enumerate(requests):
            context, arguments = request.args[:2]
            config = request_config(self.config, arguments)
            overruled |= self.config.temperature > 0 and config.temperature == 0
            ids = tuple(
                self._cut(
                    self.tok_encode(context) or [self.prefix_token_id], config.new_tokens(self.model.info)
                )
            )
            yield _TextRequest(index, ids, config, config.seeds(1)[0] + seen[ids, config])
            seen[ids, config] += 1
        if overruled:
            logger.warning(
                "temperature=%s is overruled by the task, which asks for greedy decoding; "
                "pass --gen_kwargs do_sample=True,temperature=%s to sample",
                *(self.config.temperature,) * 2,
            )

    def _batches(self, texts: Iterable[_TextRequest]) -> Iterator[list[_TextRequest]]:
        """Group texts with the same settings, long prompts first."""
        alike: defaultdict[GenerationConfig, list[_TextRequest]] = defaultdict(list)
        for text in texts:
            alike[text.config].append(text)
        for group in alike.values():
            yield from _chunks(sorted(group, key=lambda text: -len(text.ids)), self.batch_size)

    def _cut(self, ids: list[int], others: int) -> list[int]:
        """Return the last tokens of a context that fit beside `others` more."""
        room = self.max_length - others
        if room < 1:
            problem = f"must be below {self.max_length}, the tokens of prompt and answer together"
            raise FieldError("max_gen_toks", others, problem)
        if len(ids) > room:
            logger.warning("a context of %d tokens is cut to its last %d", len(ids), room)
        return ids[-room:]


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def _open(
    pretrained: str | Path | TextModel, *, device: str, dtype: str, compile: bool
) -> tuple[TextModel, str]:
    """Return the model and its name."""
    flag("compile", compile)
    if isinstance(pretrained, (str, Path)):
        return load_model(pretrained, device=device, dtype=dtype, compile=compile), str(pretrained)
    if compile:
        raise ValueError("compile needs a checkpoint by name; pass pretrained=unmask.compile(model) instead")
    return pretrained, str(getattr(pretrained, "folder", None) or type(pretrained).__name__)


def _sampler(sampler: str | Sampler, changes: Mapping[str, Any]) -> Sampler:
    """Return the sampler with its fields changed."""
    named = {name.removeprefix(SAMPLER_FIELD): value_of(value) for name, value in changes.items()}
    if isinstance(sampler, str):
        return make_sampler(sampler, **named)
    if named:
        name, value = next(iter(changes.items()))
        raise FieldError(name, value, "needs a sampler by name", "give the sampler as a string")
    return sampler


def _batch_size(size: int | str) -> int:
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    if not isinstance(size, int) or size < 1:
        remedy = "the results do not depend on it"
        raise FieldError("batch_size", size, "must be a whole number >= 1", remedy)
    return size


def _max_length(length: int | None, own: int) -> int:
    if length is None:
        return own
    whole("max_length", length, 2)
    if length > own:
        raise FieldError("max_length", length, f"must be at most {own}, the most that the model can read")
    return length


def _until_message(text: str, message: str) -> str:
    """Cut a rendered conversation after its last message, which a template may have stripped."""
    at = text.rindex(message.strip())
    whole_message = message.lstrip()
    return text[:at] + (whole_message if text.startswith(whole_message, at) else message.strip())
