"""The HTTP application: OpenAI's routes, health, metrics, and the page at /."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from time import time
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from unmask import __version__
from unmask.samplers.about import about
from unmask.serving.access import HUNG_UP, Access
from unmask.serving.api_error import ApiError, as_api_error
from unmask.serving.callers import Callers
from unmask.serving.choices import Choice, choose, explain
from unmask.serving.engine import Engine
from unmask.serving.errors import RequestFailed
from unmask.serving.events import EventStream, events, wait_for_answer
from unmask.serving.job import Answer, Job
from unmask.serving.logs import log_failure
from unmask.serving.memory import release_memory
from unmask.serving.metrics import Metrics
from unmask.serving.pages import page_routes
from unmask.serving.protocol import (
    NEUTRAL,
    AnyRequest,
    ChatRequest,
    Common,
    CompletionRequest,
    parse,
    read_body,
)
from unmask.serving.reading import Drafts
from unmask.serving.replies import Reply, model_card, usage
from unmask.serving.settings import Settings
from unmask.text.gaps import Gap, parse_gaps
from unmask.text.prompts import find_tokenizer, tokenizer_of
from unmask.trace import plain
from unmask.types import Sampler

log = logging.getLogger(__name__)
JSON = "application/json"
KNOWN_FIELDS = {*ChatRequest.model_fields, *CompletionRequest.model_fields, *NEUTRAL}
LARGE_BODY = 1 << 16  # bytes
READERS = 2  # threads that parse and tokenise requests
TIDY_SECONDS = 0.5  # delay before the memory of large requests is released
Submit = Callable[[], Job]
Result = TypeVar("Result")
Count = Callable[[], Awaitable[bytes]]  # returns all metrics in the Prometheus format


def create_app(
    engine: Engine, settings: Settings, *, count: Count | None = None, answer_id: bool = True
) -> FastAPI:
    """Return the application for an engine; it neither starts nor stops the engine.

    `count` answers /metrics in place of the engine's own metrics. Without `answer_id`, responses carry no
    request id, because a proxy adds it.
    """
    app = FastAPI(title="unmask", version=__version__, docs_url=None, redoc_url=None)
    metrics = engine.monitor if isinstance(engine.monitor, Metrics) else None
    if metrics is not None:
        metrics.watch(engine)
    service = Service(engine, settings)
    app.include_router(_open_routes(engine, metrics, count))
    app.include_router(service.routes())
    app.include_router(page_routes())
    app.add_exception_handler(ApiError, partial(_answer_error, log_prompts=settings.log_prompts))
    app.add_exception_handler(HTTPException, _answer_http_error)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(Callers, settings=settings)
    app.add_middleware(Access, metrics=metrics, answer_id=answer_id, log_prompts=settings.log_prompts)
    return app


class Service:
    """The routes under /v1."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._created = int(time())
        self._streams = 0
        self._large = asyncio.Semaphore(1)
        self._threads = ThreadPoolExecutor(READERS, "unmask-read")
        self._tidying = False

    def routes(self) -> APIRouter:
        """Return the routes under /v1, which need the API key."""
        router = APIRouter(prefix="/v1", dependencies=[Depends(self.check_key)])
        chat, completion = (_schema(kind, self._settings) for kind in (ChatRequest, CompletionRequest))
        router.add_api_route("/chat/completions", self.chat, methods=["POST"], openapi_extra=chat)
        router.add_api_route("/completions", self.complete, methods=["POST"], openapi_extra=completion)
        router.add_api_route("/models", self.models, methods=["GET"])
        router.add_api_route("/models/{name:path}", self.model, methods=["GET"])
        return router

    async def check_key(self, request: Request) -> None:
        """Reject requests without a valid API key."""
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        # Starlette decodes headers as latin-1; encoding them again restores the bytes
        same = hmac.compare_digest(sent.strip().encode("latin-1"), key.encode("utf-8", "surrogateescape"))
        if scheme.lower() != "bearer" or not same:
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body, choice = await self._read(request, ChatRequest)
        messages = [message.plain() for message in body.messages]
        submit = partial(self._submit_chat, messages, choice)
        return await self._answer(request, body, choice, submit, messages, chat=True)

    async def complete(self, request: Request) -> Response:
        """Continue a text, or fill its gaps."""
        body, choice = await self._read(request, CompletionRequest)
        prompt = body.single()
        submit = partial(self._submit_text, prompt, choice)
        return await self._answer(request, body, choice, submit, prompt, chat=False)

    async def models(self) -> dict[str, Any]:
        """List the one model."""
        return {"object": "list", "data": [model_card(self._settings, self._created)]}

    async def model(self, name: str) -> dict[str, Any]:
        """Return the model with its limits and samplers."""
        if name != self._settings.model_name:
            raise ApiError(404, f"the model {name!r} was not found", param="model", code="model_not_found")
        limits, info = self._engine.limits, self._engine.model.info
        tokenizer = find_tokenizer(self._engine.model)
        servable = self._settings.servable
        facts = {
            "samplers": sorted(servable),
            "sampler_fields": {name: plain(one) for name, one in servable.items()},
            "sampler_words": {name: asdict(about(name, one)) for name, one in servable.items()},
            "sampler": self._settings.sampler_name,
            "chat": tokenizer is not None and bool(getattr(tokenizer, "has_chat_template", True)),
            "new_tokens": self._settings.config.new_tokens(info),
            "max_length": info.max_length,
            "max_prompt_tokens": limits.max_prompt_tokens,
            "max_new_tokens": limits.max_new_tokens,
            "max_steps": limits.max_steps,
        }
        return {**model_card(self._settings, self._created), "unmask": facts}

    def _choose(self, body: Common) -> Choice:
        try:
            return choose(body, self._settings)
        except ValueError as error:
            raise self._explain(error, body) from None

    def _submit_chat(self, messages: list[dict[str, str]], choice: Choice, **options: Any) -> Job:
        """Submit a conversation. By default, only the chat template can write special tokens."""
        prompt: Any = messages
        if self._settings.special_tokens:
            tokenizer: Any = tokenizer_of(self._engine.model)
            prompt = tokenizer.chat(messages, special_tokens=True)
        return self._engine.submit(prompt, choice.sampler, choice.config, **options)

    def _submit_text(self, prompt: str | list[int], choice: Choice, **options: Any) -> Job:
        """Submit a prompt to be continued or, if it has gaps, to be filled."""
        options["special_tokens"] = self._settings.special_tokens
        self._engine.limits.check_prompt(self._engine.model, prompt)
        if isinstance(prompt, str):
            parts = parse_gaps(prompt)
            if any(isinstance(part, Gap) for part in parts):
                return self._engine.submit_infill(prompt, choice.sampler, choice.config, **options)
            prompt = "".join(str(part) for part in parts)
        return self._engine.submit(prompt, choice.sampler, choice.config, **options)

    async def _answer(
        self,
        request: Request,
        body: Common,
        choice: Choice,
        submit: Callable[..., Job],
        prompt: object,
        *,
        chat: bool,
    ) -> Response:
        """Decode, and send the answer as a whole or as a stream."""
        facts: dict[str, Any] = request.state.facts
        facts.update(sampler=choice.sampler_name, stream=bool(body.stream), prompt=prompt)
        if body.stream:
            return await self._stream(request, body, choice, submit, chat=chat)
        job = await self._submit(request, body, choice, partial(submit, deadline=body.deadline))
        facts["job"] = job.id
        try:
            answer = await wait_for_answer(job, request.receive)
        except Exception as error:
            raise self._explain(error, body, choice.sampler) from error
        if answer is None:
            return Response(status_code=HUNG_UP)
        reply = Reply(job, self._settings.model_name, choice.sampler_name, chat)
        self._note(facts, job, answer)
        return JSONResponse(reply.whole(answer))

    async def _stream(
        self, request: Request, body: Common, choice: Choice, submit: Callable[..., Job], *, chat: bool
    ) -> Response:
        if self._streams >= self._settings.max_streams:
            raise ApiError(
                429,
                f"{self._streams} answers are being streamed already; try again later",
                code="too_many_streams",
                headers={"Retry-After": "1"},
            )
        model = self._engine.model
        tokenizer = tokenizer_of(model) if body.drafts else None
        self._streams += 1
        try:
            candidates = body.draft_candidates or 0
            options = {"deadline": body.deadline, "candidates": candidates}
            job = await self._submit(request, body, choice, partial(submit, **options))
        except BaseException:
            self._streams -= 1
            raise
        request.state.facts["job"] = job.id
        stream = events(
            job,
            Reply(job, self._settings.model_name, choice.sampler_name, chat),
            None if tokenizer is None else Drafts(job.request, tokenizer, model.info.eos_ids),
            usage=body.stream_options is not None and body.stream_options.include_usage,
            heartbeat=self._settings.heartbeat,
            explain=partial(self._explain, body=body, sampler=choice.sampler),
        )
        return EventStream(job, stream, partial(self._release, request.state.facts, job))

    def _release(self, facts: dict[str, Any], job: Job) -> None:
        """Count a stream as ended, and add its outcome to the log line."""
        self._streams -= 1
        if job.future.cancelled():
            facts["hung_up"] = True
        elif isinstance(error := job.future.exception(), Exception):
            facts.update(error=str(error), code=as_api_error(error).code)
        else:
            self._note(facts, job, job.result())

    async def _submit(self, request: Request, body: Common, choice: Choice, submit: Submit) -> Job:
        """Encode and submit a request in a thread."""
        try:
            return await self._in_thread(request, submit)
        except Exception as error:
            raise self._explain(error, body, choice.sampler) from error

    def _explain(self, error: Exception, body: Common, sampler: Sampler | None = None) -> ApiError:
        """Return the error response to a request, with the model's name in place of its path."""
        api_error = explain(error, body, sampler)
        origin = str(getattr(find_tokenizer(self._engine.model), "origin", ""))
        if origin:
            api_error.message = api_error.message.replace(origin, self._settings.model_name)
        return api_error

    def _note(self, facts: dict[str, Any], job: Job, answer: Answer) -> None:
        """Add the cost of an answer to the log line."""
        facts.update(usage(job, answer), steps=answer.steps, forwards=answer.forwards)
        facts.update(queue_seconds=round(job.queue_seconds, 6), text=answer.text)

    async def _read(self, request: Request, kind: type[AnyRequest]) -> tuple[AnyRequest, Choice]:
        """Return the request and its Choice. Raise if the body is late, too long or invalid."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != JSON:
            raise ApiError(415, f"the body must be JSON; send it with content-type: {JSON}")
        try:
            raw = await asyncio.wait_for(self._receive(request), self._settings.body_seconds)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the body took longer than {self._settings.body_seconds:g} s") from None
        except ClientDisconnect:
            raise ApiError(HUNG_UP, "the client hung up") from None
        request.state.size = len(raw)
        body = await self._in_thread(request, lambda: parse(kind, read_body(raw)))
        return body, self._choose(body)

    async def _receive(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._settings.max_body:
                raise ApiError(413, f"the body must be at most {self._settings.max_body} bytes")
        return bytes(body)

    async def _in_thread(self, request: Request, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread; large requests run one at a time, because each needs much memory."""
        if request.state.size < LARGE_BODY:
            return await self._run(work)
        try:
            async with self._large:
                return await self._run(work)
        finally:
            if not self._tidying:
                self._tidying = True
                asyncio.get_running_loop().call_later(TIDY_SECONDS, self._tidy)

    def _run(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _tidy(self) -> None:
        self._tidying = False
        self._run(release_memory)


def _open_routes(engine: Engine, metrics: Metrics | None, count: Count | None) -> APIRouter:
    """Return the routes that need no key."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer ok while the server runs."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> Response:
        """Answer 200 if the engine accepts requests, else 503."""
        ready = engine.is_ready
        state = {"status": "ready" if ready else "closing"}
        return JSONResponse(state, status_code=200 if ready else 503)

    @router.get("/metrics")
    async def show_metrics() -> Response:
        """Return all metrics."""
        if metrics is None:
            raise ApiError(404, "this engine has no metrics; give it Metrics() as its monitor")
        page = metrics.page() if count is None else await count()
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _schema(kind: type[Common], settings: Settings) -> dict[str, Any]:
    """Return the schema of a route's body for /openapi.json, with the samplers of this server."""
    schema = kind.model_json_schema()
    schema["properties"]["sampler"]["enum"] = [*sorted(settings.servable), None]
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace every reference in a schema with its definition."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline(part, definitions) for name, part in schema.items()}


async def _answer_error(request: Request, error: Exception, *, log_prompts: bool) -> Response:
    api_error = as_api_error(error)
    # an unknown field name is text from the request, which the log may not quote
    param = api_error.param if api_error.param in KNOWN_FIELDS else None
    request.state.facts.update(error=api_error.message, code=api_error.code, param=param)
    cause = error.__cause__
    if api_error.status == 500 and not isinstance(cause, RequestFailed):  # the engine logs its own errors
        log_failure(log, cause or error, whole=log_prompts, request_id=request.state.request_id)
    return JSONResponse(api_error.body(), status_code=api_error.status, headers=api_error.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    api_error = ApiError(error.status_code, message)
    return JSONResponse(api_error.body(), status_code=api_error.status, headers=error.headers)
