"""`rayllm build`"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayllm import __version__
from rayllm.cli.shared.application import IMPORT_PATH, inlined_file
from rayllm.config.yaml import dump_yaml

if TYPE_CHECKING:
    from rayllm.deploy.kuberay import ManifestOptions

# Command-line options with the same name in ManifestOptions.
_SAME = (
    *("name", "namespace", "gpu_resource", "gpus_per_node", "cpus", "memory", "head_cpus", "head_memory"),
    *("routers", "service_account", "upgrade", "gateway_class", "redis", "node_labels"),
)
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")


def _kuberay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options of --kuberay to the command."""
    many: dict[str, Any] = {"multiple": True, "metavar": "NAME=VALUE"}
    amount: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "N"}
    options = [
        click.option("--engine", type=click.Choice(["cuda", "cpu"]), help="The image's build of vLLM; default: cuda."),
        click.option(
            "--image",
            metavar="IMAGE",
            help=f"Image of all pods; default: rayllm:{__version__} or rayllm:{__version__}-cpu.",
        ),
        click.option("--name", help="Name of the RayService; default: rayllm."),
        click.option("--namespace", help="Namespace; default: kubectl's."),
        click.option(
            "--path", "paths", multiple=True, metavar="HERE=THERE", help="A local folder, and its path in the pods."
        ),
        click.option("--gpu-resource", metavar="NAME", help="Resource of the device plugin; default: nvidia.com/gpu."),
        click.option("--gpus-per-node", **amount, help="GPUs of the largest node; default: 8."),
        click.option("--cpus", **amount, help="CPUs per GPU (default: 3), or of a worker without GPU (default: 4)."),
        click.option("--memory", help="Memory per GPU (default: 12Gi), or of a worker without GPU (default: 8Gi)."),
        click.option("--head-cpus", **amount, help="CPUs of the head; default: 2."),
        click.option("--head-memory", help="Memory of the head; default: 8Gi."),
        click.option("--routers", type=click.IntRange(min=0), metavar="N", help="Pods that only run routers."),
        click.option("--model-cache", help="emptyDir (the default), emptyDir:SIZE, hostPath:/folder or pvc:CLAIM."),
        click.option("--node-labels", type=click.Choice(["gke", "karpenter"]), help="Scheme of the nodes' GPU labels."),
        click.option(
            "--node-selector", multiple=True, metavar="[OF:]KEY=VALUE", help="OF: an accelerator, cpu, router, head."
        ),
        click.option("--toleration", multiple=True, metavar="KEY[=VALUE]:EFFECT", help="Taint that workers tolerate."),
        click.option("--env", **many, help="Environment variable of all pods."),
        click.option("--env-secret", multiple=True, metavar="SECRET", help="Secret for the pods' environment."),
        click.option("--image-pull-secret", metavar="SECRET", help="Secret for pulling the image."),
        click.option("--service-account", metavar="NAME", help="The pods' service account."),
        click.option("--service-account-annotation", **many, help="Create the account, with this annotation."),
        click.option("--upgrade", type=click.Choice(_UPGRADES), help="Upgrade strategy; default: NewCluster."),
        click.option("--gateway-class", metavar="NAME", help="GatewayClass of an incremental upgrade."),
        click.option("--redis", metavar="HOST:PORT", help="Redis for the state of Ray's head."),
        click.option("--redis-password", metavar="SECRET:KEY", help="Its password."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    "build",
    help="""Print FILE with inline models, for clusters that do not share this machine's files.

    FILE is a serve config or a model's YAML. With --kuberay it becomes a RayService, for `kubectl apply -f -`; the
    other options are for that.""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kuberay", is_flag=True, help="Print a RayService for KubeRay.")
@_kuberay_options
def command(file: Path, kuberay: bool, **arguments: Any) -> None:
    if not kuberay:
        for name in (name for name, value in arguments.items() if value not in (None, ())):
            option = next(p.opts[0] for p in click.get_current_context().command.params if p.name == name)
            raise click.UsageError(f"{option} needs --kuberay.")
        click.echo(dump_yaml(inlined_file(file)), nl=False)
        return
    click.echo(_ray_service(file, arguments), nl=False)


def _ray_service(file: Path, arguments: dict[str, Any]) -> str:
    from rayllm.cluster.placement import place
    from rayllm.config import ModelConfig
    from rayllm.deploy.kuberay import (
        local_paths,
        open_applications,
        relocate_paths,
        render_manifest,
        required_variables,
    )

    serve_config, on_cpu = inlined_file(file), arguments["engine"] == "cpu"

    def placed(model: ModelConfig) -> Any:
        placement = place(model, on_cpu)
        return placement.bundles, placement.strategy

    for here, there in _pairs("--path", arguments["paths"]).items():
        folder = str(Path(here).resolve())
        if relocate_paths(serve_config, folder, "") == serve_config:
            raise click.BadParameter(f"no path in {file} is below {here}.", param_hint="--path")
        serve_config = relocate_paths(serve_config, folder, there)
    text = render_manifest(serve_config, placed, _options(arguments))
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


def _options(arguments: dict[str, Any]) -> ManifestOptions:
    from rayllm.deploy.kuberay import (
        ManifestOptions,
        parse_cache_volume,
        parse_selector,
        parse_toleration,
    )

    suffix = "-cpu" if arguments["engine"] == "cpu" else ""
    options: dict[str, Any] = {name: arguments[name] for name in _SAME if arguments[name] is not None}
    if arguments["model_cache"]:
        options["cache"] = parse_cache_volume(arguments["model_cache"])
    if arguments["redis_password"]:
        options["redis_password"] = _secret_key(arguments["redis_password"])
    return ManifestOptions(
        image=arguments["image"] or f"rayllm:{__version__}{suffix}",
        node_selectors=tuple(map(parse_selector, arguments["node_selector"])),
        tolerations=tuple(map(parse_toleration, arguments["toleration"])),
        env=_pairs("--env", arguments["env"]),
        env_secrets=arguments["env_secret"],
        pull_secret=arguments["image_pull_secret"],
        account_annotations=_pairs("--service-account-annotation", arguments["service_account_annotation"]),
        **options,
    )


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals or (option != "--env" and not value):
            raise click.BadParameter(f"`{name}{equals}{value}` must have a name, `=` and a value.", param_hint=option)
    return {name: value for name, _, value in pairs}


def _secret_key(text: str) -> tuple[str, str]:
    secret, _, key = text.partition(":")
    if not secret or not key:
        raise click.BadParameter(f"`{text}` must be SECRET:KEY.", param_hint="--redis-password")
    return secret, key
