"""Schema of the sources of weights and tokenizers."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from rayllm.config.base import Frozen, matching

# A file, a repository, or a repository on the hub with the name of a quantization.
_GGUF = re.compile(r".*[.-]gguf/?|[\w.-]+/[\w.-]+:([\w-]+-)?(I?Q\d|TQ\d|MXFP\d|B?F16|F32)\w*", re.IGNORECASE)


def not_gguf(value: str) -> str:
    """`value`, the name of a source; raises ValueError if the source is GGUF."""
    if _GGUF.fullmatch(value):
        raise ValueError(
            f"`{value}` is GGUF, which RayLLM does not load; name a source with safetensors, such as the original "
            "model, or one quantized as AWQ, GPTQ or FP8"
        )
    return value


_Bucket = Annotated[str, matching(r"(s3|gs)://[^/].*", "must begin with s3://bucket or gs://bucket")]
_NOT_A_REPOSITORY = "is neither a hub id like `organisation/name` nor a path; begin a path with `./` or `/`"


class HubSource(Frozen):
    """A repository of the HuggingFace hub."""

    repo_id: Annotated[str, AfterValidator(not_gguf), matching(r"(?!.*\.\.)[\w.-]+(/[\w.-]+)?", _NOT_A_REPOSITORY)]
    """`organisation/name` on the hub."""
    revision: str | None = None
    """Branch, tag or commit; null is the default branch."""


class LocalSource(Frozen):
    """A folder that every node serving the model can read."""

    path: Annotated[str, AfterValidator(not_gguf)]
    """Path of the folder."""


class ExtraFile(Frozen):
    """An additional file to fetch."""

    bucket_uri: _Bucket
    """`s3://…` or `gs://…` of a file, or of a folder."""
    destination_path: Annotated[str, matching(r"(?!(.*/)?\.\.(/|$)).+", "must be a path without `..`")]
    """Destination: a path within the model's folder, or anywhere on the node if it begins with `/` or `~`."""

    @property
    def is_inside(self) -> bool:
        """Whether the destination is in the model's folder."""
        return not self.destination_path.startswith(("/", "~", "$"))


class S3Options(Frozen):
    """Parsed `s3_sync_args`."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    no_sign_request: bool = False


class AwsCredentials(Frozen):
    """An HTTP endpoint that issues temporary AWS credentials."""

    create_aws_credentials_url: str
    """URL that returns the credentials."""
    auth_token_env_variable: str | None = None
    """Environment variable with the bearer token for that URL."""


class BucketSource(Frozen):
    """A folder of an object store."""

    bucket_uri: Annotated[_Bucket, AfterValidator(not_gguf)]
    """`s3://bucket/prefix` or `gs://bucket/prefix`."""
    extra_files: tuple[ExtraFile, ...] = ()
    """Additional files that the model needs."""
    s3_sync_args: tuple[str, ...] = ()
    """Options of the AWS CLI: `--region`, `--endpoint-url`, `--profile`, each with its value, `--no-sign-request`."""
    s3_aws_credentials: AwsCredentials | None = None
    """Endpoint for temporary credentials."""
    anonymous: bool = False
    """Access a public bucket without credentials."""

    @model_validator(mode="before")
    @classmethod
    def _anonymous_by_address(cls, value: Any) -> Any:
        """`s3://anonymous@bucket/prefix` means anonymous access, as in `ray.serve.llm`."""
        uri = value.get("bucket_uri") if isinstance(value, dict) else None
        if not isinstance(uri, str) or "://anonymous@" not in uri:
            return value
        return {**value, "bucket_uri": uri.replace("anonymous@", "", 1), "anonymous": True}

    @field_validator("s3_sync_args")
    @classmethod
    def _are_understood(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        _s3_options(value)
        return value

    @model_validator(mode="after")
    def _s3_keys_are_for_s3(self) -> Self:
        for key in ("s3_sync_args", "s3_aws_credentials"):
            if getattr(self, key) and not self.bucket_uri.startswith("s3://"):
                raise ValueError(f"`{key}` is for s3:// sources; leave it out")
        if self.s3_aws_credentials and (self.anonymous or self.s3_options.no_sign_request):
            raise ValueError("`s3_aws_credentials` and anonymous access exclude each other; keep one")
        return self

    @property
    def s3_options(self) -> S3Options:
        return _s3_options(self.s3_sync_args)


def _s3_options(args: tuple[str, ...]) -> S3Options:
    """Parse options of the AWS CLI; raises ValueError for an unsupported option."""
    options: dict[str, str | bool] = {}
    words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    known = {"--" + name.replace("_", "-"): name for name in S3Options.model_fields}
    while words:
        option = words.pop(0)
        if option not in known:
            raise ValueError(f"s3_sync_args: `{option}` is not supported; use {', '.join(known)}")
        if known[option] == "no_sign_request":
            options[known[option]] = True
        elif words:
            options[known[option]] = words.pop(0)
        else:
            raise ValueError(f"s3_sync_args: `{option}` needs a value after it")
    return S3Options.model_validate(options)


def _from_text(value: Any) -> Any:
    """Parse the string form of a source; the class of a mapping follows from its key."""
    if isinstance(value, str):
        if re.match(r"(s3|gs)://", value):
            return BucketSource(bucket_uri=value)
        if re.match(r"[./~]", value):
            return LocalSource(path=value)
        return HubSource(repo_id=value)
    if isinstance(value, dict):
        for key, source in (("bucket_uri", BucketSource), ("repo_id", HubSource), ("path", LocalSource)):
            if key in value:
                return source.model_validate(value)
        raise ValueError("must be a hub id, a path, an s3:// or gs:// address, or a mapping with `bucket_uri`")
    return value


_AnySource = HubSource | LocalSource | BucketSource
Source = Annotated[_AnySource, BeforeValidator(_from_text, json_schema_input_type=str | _AnySource)]
"""A hub id, a path that begins with `.`, `/` or `~`, an `s3://` or `gs://` address, or one of the mappings above."""
