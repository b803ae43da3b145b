"""Schema of a serve config's `args`."""

import ipaddress
import re
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rayllm.config.base import Frozen, matching
from rayllm.config.model import ModelConfig
from rayllm.config.policy import GuardConfig, HookConfig, OidcConfig

_Folder = Annotated[
    str, matching(r"(s3|gs)://[^/\s].*|(?!.*://).+", "must be a path, s3://bucket/folder or gs://bucket/folder")
]
_File = Annotated[
    str, matching(r"(s3|gs)://[^/\s]+/.+|(?!.*://).+", "must be a path, s3://bucket/file or gs://bucket/file")
]
_Address = Annotated[str, matching(r"[^\s/]+:\d{1,5}", "must be `host:port`, such as `127.0.0.1:8001`")]
_Host = Annotated[
    str, matching(r"[\w-][\w.-]*|[\dA-Fa-f:.]+", "must be a host name or address, without scheme, port and brackets")
]


def _check_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be an address or a network, such as `10.0.0.0/8`: {error}") from None
    return text


_Network = Annotated[str, AfterValidator(_check_network)]


class CorsConfig(Frozen):
    """Web origins that may call the service. Source: https://fetch.spec.whatwg.org/#http-cors-protocol"""

    allow_origins: tuple[str, ...] = ()
    """Origins such as `https://chat.example.com`, or `*`."""
    allow_methods: tuple[str, ...] = ("GET", "POST")
    """HTTP methods."""
    allow_headers: tuple[str, ...] = ("authorization", "content-type", "x-request-id")
    """Request headers."""
    allow_credentials: bool = False
    """Let pages send cookies and authorization."""

    @model_validator(mode="after")
    def _credentials_are_for_named_origins(self) -> Self:
        if self.allow_credentials and "*" in self.allow_origins:
            raise ValueError("`allow_credentials` with the origin `*` would trust every web page; name the origins")
        return self


class BatchesConfig(Frozen):
    """OpenAI's files and batches (`/v1/files`, `/v1/batches`)."""

    storage: _Folder
    """Folder for files, batches and work in progress: a path visible to all nodes, `s3://…` or `gs://…`."""
    max_file_bytes: int = Field(200 * 1024 * 1024, ge=1024)
    """Largest file in bytes; a larger one is answered 413."""
    max_files: int = Field(10_000, ge=1)
    """Most files in storage, including outputs of batches; beyond it, uploads and batches are answered 429."""
    max_total_bytes: int = Field(20 * 1024**3, ge=1024)
    """Most bytes in storage, including outputs of batches; beyond it, uploads and batches are answered 429."""
    max_batches: int = Field(1000, ge=1)
    """Most batches that have not ended; beyond it, new ones are answered 429. As many ended batches are kept."""
    allow_remote: bool = False
    """Accept files and batches even if other machines can reach the service and there are no API keys (`router.keys`),
    so that everybody can read and delete everything. Otherwise such a service answers 403."""
    max_requests: int = Field(50_000, ge=1)
    """Most requests in one batch; a larger one fails."""
    max_running: int = Field(2, ge=1)
    """Batches processed at once; later ones wait in `validating`."""
    concurrency: int = Field(64, ge=1)
    """Requests of one batch in flight at once."""
    execution: Literal["deployed", "engines"] = "deployed"
    """What processes a batch: `deployed`, the models that serve everybody, or `engines`, which the batch starts from
    its model's configuration and stops at its end."""


Routing = Literal["least_loaded", "prefix_aware", "session"]
HostedTools = Literal["ignore", "refuse"]
OpenPath = Literal["/metrics", "/openapi.json", "/v1/models", "/version"]


class RouterConfig(Frozen):
    """Options of the router (`args.router`)."""

    num_replicas: int | None = Field(None, ge=1)
    """Router processes; null is one for each eight CPUs of the deploying node, at most four."""
    listen: _Address | None = None
    """`host:port` where the routers listen themselves, so that replies go straight to clients. Null is the address in
    Ray Serve's `http_options` with `proxy_location: Disabled`, and otherwise none."""
    max_ongoing_requests: int = Field(1000, ge=1)
    """Requests that a router process handles at once; with keys, at most half of them are a tenant's."""
    max_queued_requests: int = Field(1000, ge=1)
    """Requests that the proxy queues for a router process before it answers 503."""
    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1024)
    """Largest request body in bytes; a larger one is answered 413."""
    max_pending_body_bytes: int = Field(1024 * 1024 * 1024, ge=1024)
    """Most bytes of request bodies in a router process at once, including incomplete ones; a request beyond it is
    answered 503. With keys, at most half of them are a tenant's."""
    max_header_bytes: int = Field(64 * 1024, ge=1024)
    """Largest URL, headers and trailers of a request together, in bytes; larger ones are answered 431."""
    header_timeout_s: float = Field(10.0, gt=0)
    """Seconds that a client may take to send a request's headers; a slower one is answered 408, an idle one closed."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Seconds that a client may take to send a request's body, plus one for each 50,000 bytes; then 408."""
    send_timeout_s: float = Field(120.0, gt=0)
    """Seconds that a client may leave a reply unread before its connection is closed and the request cancelled."""
    request_timeout_s: float | None = Field(600.0, gt=0)
    """Seconds until the first byte of a reply, then 408; null is no limit."""
    queue_timeout_s: float = Field(300.0, gt=0)
    """Seconds that a request may wait for a replica with free capacity, or for one to start; then 503."""
    routing: Routing = "least_loaded"
    """How to choose among replicas with free capacity: `least_loaded` by outstanding tokens, `prefix_aware` by cached
    prompt prefixes, `session` by the header `x-session-id`. With each, adapters stay where they are loaded."""
    routing_by_model: dict[str, Routing] = {}
    """Model id → routing for that model."""
    model_aliases: dict[str, str] = {}
    """More names for models: alias → model id."""
    fallbacks: dict[str, tuple[str, ...]] = {}
    """Model id → models tried in turn when it answers 503."""
    hosted_tools: HostedTools = "ignore"
    """What becomes of tools that OpenAI's or Anthropic's own services run, such as `web_search`, and RayLLM does not:
    `ignore` leaves them out, and replies name them in the header `x-rayllm-ignored-tools`; `refuse` answers 400."""
    cors: CorsConfig | None = None
    """Let web pages of other origins call the service."""
    batches: BatchesConfig | None = None
    """Serve OpenAI's Files and Batch APIs; null does not."""
    log_prompts: bool = False
    """Write request bodies to the log."""
    log_requests: bool = False
    """Write one line of JSON for each request to `requests_<router>.jsonl` in Ray Serve's log folder: the caller, the
    model, tokens, times and status, without the prompt and the answer."""
    admin_keys: tuple[str, ...] = ()
    """Keys of administrators, who may load adapters and look at requests, each as `${env:NAME}`, of 16 characters or
    more; without any, nobody may."""
    keys: _File | None = None
    """File of API keys, which `rayllm keys` manages: a path visible to all nodes, `s3://…` or `gs://…`. Every request
    but `/health`, `/ready` and `/ui` then needs one."""
    open_paths: tuple[OpenPath, ...] = ()
    """Paths that need no key, though others do: `/metrics`, `/openapi.json`, `/v1/models` or `/version`."""
    allow_anyone: bool = False
    """Serve anyone who can reach the service, although it has no keys: for a service behind a proxy that authenticates
    callers. Otherwise, a service without `keys` or `oidc` must listen on loopback."""
    allowed_hosts: tuple[_Host, ...] = ()
    """Hosts by which requests may reach a service without keys, besides `localhost` and loopback addresses. Requests
    with any other `Host` header are answered 403, unless `allow_anyone` is set."""
    trusted_proxies: tuple[_Network, ...] = ()
    """Addresses and networks, such as `10.0.0.0/8`, of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` say who
    the client is, and which scheme it uses. From any other address, these headers are ignored."""
    oidc: OidcConfig | None = None
    """Accept tokens of an OpenID Connect issuer as well as keys, or, without `keys`, in place of them."""
    usage: _Folder | None = None
    """Folder of the ledger of what keys use: a path visible to all nodes, `s3://…` or `gs://…`. Null is `usage` in
    `RAYLLM_CACHE_DIR`, which is enough on one node."""

    ui: bool | None = None
    """Serve the page at `/ui`, for browsers. Null serves the page if callers need keys, or if the service listens on
    loopback only."""

    hooks: tuple[HookConfig, ...] = ()
    """Python functions that may change or refuse each request, or see its usage, called in order."""
    guards: tuple[GuardConfig, ...] = ()
    """Models that are asked whether requests and replies are safe. The first answers `/v1/moderations`."""

    @property
    def needs_keys(self) -> bool:
        """Whether every caller needs a key, or a token of an issuer."""
        return self.keys is not None or self.oidc is not None

    @model_validator(mode="after")
    def _batches_pass_the_policy(self) -> Self:
        policy = "hooks" if self.hooks else "guards" if any(guard.check for guard in self.guards) else ""
        if policy and self.batches and self.batches.execution == "engines":
            raise ValueError(
                f"`batches.execution: engines` sends no request through a router, so `{policy}` would not see them; "
                "use `execution: deployed`"
            )
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`."""
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def routing_of(self, model_id: str) -> Routing:
        """Routing of a model."""
        return self.routing_by_model.get(model_id, self.routing)

    @field_validator("admin_keys")
    @classmethod
    def _are_references(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if not re.fullmatch(r"\$\{env:\w+\}", key):
                raise ValueError("a file must not hold a key; write `${env:NAME}` and export the variable")
        return value


class AppConfig(Frozen):
    """The whole service: its models and its router."""

    models: tuple[ModelConfig, ...] = Field(min_length=1)
    """The models, with unique ids."""
    router: RouterConfig = RouterConfig()
    """The router."""

    @cached_property
    def at_zero(self) -> frozenset[str]:
        """Ids of the models that may have no replica."""
        scaling = {model.model_id: model.deployment_config.autoscaling_config for model in self.models}
        return frozenset(name for name, each in scaling.items() if each and each.min_replicas == 0)

    @field_validator("models")
    @classmethod
    def _ids_differ(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        ids = [model.model_id for model in models]
        twice = sorted({model_id for model_id in ids if ids.count(model_id) > 1})
        if twice:
            raise ValueError(f"duplicate model id: {', '.join(twice)}; every model needs its own id")
        return models

    @model_validator(mode="after")
    def _names_lead_somewhere(self) -> Self:
        ids = {model.model_id for model in self.models}

        def check(key: str, *names: str) -> None:
            for name in names:
                if name not in ids:
                    raise ValueError(f"{key}: no model has the id `{name}`")

        for alias, target in self.router.model_aliases.items():
            if alias in ids:
                raise ValueError(f"router.model_aliases: `{alias}` is the id of a model itself")
            check(f"router.model_aliases.{alias}", target)
        self._adapters_have_names_of_their_own(ids | self.router.model_aliases.keys())
        check("router.routing_by_model", *self.router.routing_by_model)
        for model, others in self.router.fallbacks.items():
            check("router.fallbacks", model, *others)
            if model in others:
                raise ValueError(f"router.fallbacks.{model}: `{model}` cannot be its own fallback; remove it")
            if twice := sorted({name for name in others if others.count(name) > 1}):
                raise ValueError(f"router.fallbacks.{model}: `{twice[0]}` is listed twice; keep one")
        guards = [guard.model for guard in self.router.guards]
        for index, name in enumerate(guards):
            check(f"router.guards.{index}.model", name)
            if name in guards[:index]:
                raise ValueError(f"router.guards.{index}.model: `{name}` is a guard already; keep one")
        return self

    def _adapters_have_names_of_their_own(self, taken: set[str]) -> None:
        """Adapters of `lora_modules` can be requested by name alone, so the name must be unique."""
        for model in self.models:
            for module in model.lora_config.lora_modules if model.lora_config else ():
                if module.name in taken:
                    raise ValueError(
                        f"model `{model.model_id}`: lora_config.lora_modules: `{module.name}` already names a model, "
                        "an alias or another adapter; choose another"
                    )
                taken.add(module.name)
