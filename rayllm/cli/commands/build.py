"""`rayllm build`"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rayllm import __version__
from rayllm.cli.shared.application import IMPORT_PATH, inlined_file
from rayllm.config.yaml import dump_yaml
from rayllm.deploy.kuberay.options import (
    ManifestOptions,
    parse_cache_volume,
    parse_selector,
    parse_toleration,
    read_patch,
)
from rayllm.deploy.kuberay.ray_service import render_manifest
from rayllm.deploy.kuberay.serve_config import local_paths, open_applications, relocate_paths, required_variables

_AMOUNT: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "N"}
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")


def _by(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Parse the value of an option, or each of its values."""
    return lambda ctx, param, value: tuple(map(parse, value)) if isinstance(value, tuple) else value and parse(value)


def _pairs(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals or (param.name != "env" and not value):
            raise click.BadParameter(f"`{name}{equals}{value}` must have a name, `=` and a value.")
    return {name: value for name, _, value in pairs}


def _secret_key(text: str) -> tuple[str, str]:
    secret, _, key = text.partition(":")
    if not secret or not key:
        raise click.BadParameter(f"`{text}` must be SECRET:KEY.")
    return secret, key


_NAMED: dict[str, Any] = {"multiple": True, "metavar": "NAME=VALUE", "callback": _pairs}


# Beside FILE, --kuberay, --engine, --image and --path, options have the names of fields of ManifestOptions.
@click.command(
    "build",
    help="""Print FILE with inline models, for clusters that do not share this machine's files.

    FILE is a serve config or a model's YAML. With --kuberay it becomes a RayService, for `kubectl apply -f -`; the
    other options are for that.""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kuberay", is_flag=True, help="Print a RayService for KubeRay.")
@click.option("--engine", type=click.Choice(["cuda", "cpu"]), help="The image's build of vLLM; default: cuda.")
@click.option(
    "--image", metavar="IMAGE", help=f"Image of all pods; default: rayllm:{__version__} or rayllm:{__version__}-cpu."
)
@click.option("--name", help="Name of the RayService; default: rayllm.")
@click.option("--namespace", help="Namespace; default: kubectl's.")
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="HERE=THERE",
    callback=_pairs,
    help="A local folder, and its path in the pods.",
)
@click.option("--gpu-resource", metavar="NAME", help="Resource of the device plugin; default: nvidia.com/gpu.")
@click.option("--gpus-per-node", **_AMOUNT, help="GPUs of the largest node; default: 8.")
@click.option("--cpus", **_AMOUNT, help="CPUs per GPU (default: 3), or of a worker without GPU (default: 4).")
@click.option("--memory", help="Memory per GPU (default: 12Gi), or of a worker without GPU (default: 8Gi).")
@click.option("--head-cpus", **_AMOUNT, help="CPUs of the head; default: 2.")
@click.option("--head-memory", help="Memory of the head; default: 8Gi.")
@click.option("--routers", type=click.IntRange(min=0), metavar="N", help="Pods that only run routers.")
@click.option(
    "--model-cache",
    "cache",
    callback=_by(parse_cache_volume),
    help="emptyDir (the default), emptyDir:SIZE, hostPath:/folder or pvc:CLAIM.",
)
@click.option("--runtime-class", metavar="NAME", help="RuntimeClass of pods with GPUs, such as nvidia.")
@click.option("--worker-resource", "worker_resources", **_NAMED, help="Other resource of each pod with GPUs.")
@click.option("--patch", metavar="FILE", callback=_by(read_patch), help="JSON merge patch of the RayService.")
@click.option("--node-labels", type=click.Choice(["gke", "karpenter"]), help="Scheme of the nodes' GPU labels.")
@click.option(
    "--node-selector",
    "node_selectors",
    multiple=True,
    metavar="[OF:]KEY=VALUE",
    callback=_by(parse_selector),
    help="OF: an accelerator, cpu, router, head.",
)
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="KEY[=VALUE]:EFFECT",
    callback=_by(parse_toleration),
    help="Taint that workers tolerate.",
)
@click.option("--env", **_NAMED, help="Environment variable of all pods.")
@click.option("--env-secret", "env_secrets", multiple=True, metavar="SECRET", help="Secret for the pods' environment.")
@click.option("--image-pull-secret", "pull_secret", metavar="SECRET", help="Secret for pulling the image.")
@click.option("--service-account", metavar="NAME", help="The pods' service account.")
@click.option(
    "--service-account-annotation", "account_annotations", **_NAMED, help="Create the account, with this annotation."
)
@click.option("--upgrade", type=click.Choice(_UPGRADES), help="Upgrade strategy; default: NewCluster.")
@click.option("--gateway-class", metavar="NAME", help="GatewayClass of an incremental upgrade.")
@click.option("--redis", metavar="HOST:PORT", help="Redis for the state of Ray's head.")
@click.option("--redis-password", metavar="SECRET:KEY", callback=_by(_secret_key), help="Its password.")
@click.pass_context
def command(ctx: click.Context, /, file: Path, kuberay: bool, **options: Any) -> None:
    given = {name: value for name, value in options.items() if value not in (None, (), {})}
    if kuberay:
        click.echo(_ray_service(file, **given), nl=False)
        return
    for param in ctx.command.params:
        if param.name in given:
            raise click.UsageError(f"{param.opts[0]} needs --kuberay.")
    click.echo(dump_yaml(inlined_file(file)), nl=False)


def _ray_service(
    file: Path, engine: str = "cuda", image: str = "", paths: dict[str, str] | None = None, **options: Any
) -> str:
    serve_config, on_cpu = inlined_file(file), engine == "cpu"
    for here, there in (paths or {}).items():
        folder = str(Path(here).resolve())
        if relocate_paths(serve_config, folder, "") == serve_config:
            raise click.BadParameter(f"no path in {file} is below {here}.", param_hint="--path")
        serve_config = relocate_paths(serve_config, folder, there)
    image = image or f"rayllm:{__version__}{'-cpu' if on_cpu else ''}"
    text = render_manifest(serve_config, on_cpu, ManifestOptions(image, **options))
    for application in serve_config["applications"]:
        if application.get("import_path") != IMPORT_PATH:
            click.echo(f"Application {application.get('name')} is not RayLLM's: no pods are planned for it.", err=True)
    for application in open_applications(serve_config):
        name = application.get("name")
        click.echo(f"Anyone who can reach the Service can use application {name}: set router.keys.", err=True)
    for path in local_paths(serve_config):
        click.echo(f"The pods must have {path}, in the image or on a volume.", err=True)
    if variables := required_variables(serve_config):
        click.echo(f"The pods' environment must have {', '.join(variables)}.", err=True)
    return text
