"""The files of `deploy/`: images, systemd units and Kubernetes manifests, with what a ledger needs of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin.processes import free_port
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())


def check_command(words: Sequence[str]) -> None:
    """What follows `hush` is a command, with options that exist."""
    from typer.main import get_command

    from hush.cli.main import app

    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    options = {name for each in command.params for name in each.opts}
    assert {word for word in rest if word.startswith("--")} <= options, words
    assert [word for word in rest if not word.startswith("--")], words


def instructions() -> Iterator[tuple[str, str, str]]:
    """The instructions of the Dockerfile: stage, name and arguments."""
    stage = ""
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        stage = rest.split()[-1] if name == "FROM" else stage
        yield stage, name, rest


def of(stage: str, name: str) -> list[str]:
    return [rest for at, found, rest in instructions() if (at, found) == (stage, name)]


def listed(text: str) -> list[str]:
    return re.findall(r'"([^"]*)"', text)


@pytest.mark.parametrize("stage", ["coordinator", "member"])
def test_an_image_runs_as_a_user_without_rights_and_says_whether_it_is_well(stage: str) -> None:
    (base,), (user,) = of(stage, "FROM"), of("hush", "USER")
    assert base == f"hush AS {stage}" and user == "10001:10001", "both images are made from the same, and not as root"
    assert not of(stage, "USER")
    (entry,), (command,), (health,) = of(stage, "ENTRYPOINT"), of(stage, "CMD"), of(stage, "HEALTHCHECK")
    check_command([*listed(entry)[1:], *listed(command)])
    check_command(listed(health.partition("CMD")[2])[1:])
    (volumes,) = of(stage, "VOLUME")
    assert listed(volumes) == (["/federation"] if stage == "coordinator" else ["/kit", "/witness"])
    assert "HUSH_WITNESS=/witness" in of("hush", "ENV")[0], "outside the kit, in a volume of its own"


def test_what_the_images_are_built_from_is_there_and_no_secrets_are() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    taken = [line[1:] for line in ignored if line.startswith("!")]
    assert all((ROOT / name).exists() for name in taken)
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(taken)
    links = [path.resolve() for path in (ROOT / "src").rglob("*") if path.is_symlink()]
    assert [link for link in links if str(link.relative_to(ROOT)) not in taken] == [], "links out of src"


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_hardened_and_restarts(unit: str) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    keys = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    for key, value in {
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "Restart": "on-failure",
        "User": "hush", "UMask": "0077", "CapabilityBoundingSet": "", "SuccessExitStatus": "130",
    }.items():  # fmt: skip
        assert keys[key] == value, key
    words = shlex.split(keys["ExecStart"])
    check_command(words[1:])
    written = keys["ReadWritePaths"].split()
    assert words[3].startswith(written[0]), "the folder that the process writes"
    if "member" in unit:
        witness = re.search(r"HUSH_WITNESS=(\S+)", keys["Environment"])[1]
        assert witness in written and not witness.startswith(written[0])


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    files = []
    for unit in UNITS:
        files.append(tmp_path / unit.replace("@", "@north"))
        text = (DEPLOY / "systemd" / unit).read_text().replace("/opt/hush/bin/hush", "/bin/true")
        files[-1].write_text(re.sub(r"^(User|Group)=hush$", r"\1=root", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert ours == []
    for unit, file in zip(UNITS, files, strict=True):
        file.write_text((DEPLOY / "systemd" / unit).read_text())
        words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(file)]
        rated = subprocess.run(words, capture_output=True, text=True)
        assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr


def manifests() -> list[dict[str, Any]]:
    yaml: Any = pytest.importorskip("yaml")
    files = [path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [each for path in files for each in yaml.safe_load_all(path.read_text())]


def kind(name: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if each["kind"] == name]
    return found


def test_no_ledger_and_no_federation_is_opened_twice() -> None:
    """Not even while an update is rolled out."""
    coordinator, member = kind("Deployment")["spec"], kind("StatefulSet")["spec"]
    assert (coordinator["replicas"], coordinator["strategy"]["type"]) == (1, "Recreate")
    assert member["replicas"] == 1
    claims = [*member["volumeClaimTemplates"], kind("PersistentVolumeClaim")]
    assert all(each["spec"]["accessModes"] == ["ReadWriteOncePod"] for each in claims)
    assert [each["metadata"]["name"] for each in claims[:2]] == ["kit", "witness"]
    (join,) = member["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in join["volumeMounts"]}
    (witness,) = [each["value"] for each in join["env"] if each["name"] == "HUSH_WITNESS"]
    assert witness.startswith(mounts["witness"]) and join["args"][1].startswith(mounts["kit"])


def test_pods_are_confined_and_their_commands_exist() -> None:
    for each in (kind("Deployment"), kind("StatefulSet")):
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "else keys become readable by a group"
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"] and not confined["allowPrivilegeEscalation"]
            assert confined["capabilities"] == {"drop": ["ALL"]}
        for container in pod["containers"]:
            check_command(["federation", *container["args"]])
            for probe in ("startupProbe", "livenessProbe"):
                if "exec" in container.get(probe, {}):
                    check_command(container[probe]["exec"]["command"][1:])
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", ())}
            assert mounted <= claims | {volume["name"] for volume in pod["volumes"]}


def test_kubernetes_reads_the_manifests() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^kind: ", done.stdout, re.MULTILINE)) == len(manifests())
    assert done.stdout.count("namespace: hush") == len(manifests()) - 1


class Image:
    """The steps of the Dockerfile in a directory, with a virtual environment in place of the system."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        place = self.venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        # What is installed here already is not downloaded once more; Hush itself is the wheel's.
        (place / "installed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        for name in ("source", "wheels", "data"):
            (root / name).mkdir()
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.environment |= {"PATH": f"{self.venv / 'bin'}{os.pathsep}{os.environ['PATH']}", "INDEX": ""}
        for pair in of("hush", "ENV")[0].split():
            name, _, value = pair.partition("=")
            self.environment[name] = self.path(value)

    def path(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(source|wheels|federation|kit|witness|data)\b", rf"{self.root}/\1", text)

    def build(self) -> None:
        for name in (line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")):
            target = self.root / "source" / name
            target.parent.mkdir(exist_ok=True)
            # Links stay links, as a builder has them: what they lead to must be in the context as well.
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, symlinks=True)
            else:
                shutil.copy(ROOT / name, target)
        shutil.copy(ROOT / "constraints.txt", self.root / "wheels" / "constraints.txt")
        for stage, name, rest in instructions():
            if stage in ("wheel", "hush") and name == "RUN" and "useradd" not in rest:
                step = self.path(rest.replace("-o 10001 -g 10001 ", ""))
                subprocess.run(["sh", "-ec", step], cwd=self.root / "source", env=self.environment, check=True)

    def hush(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["hush", *words], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )

    def start(self, stage: str) -> subprocess.Popen[bytes]:
        words = [*listed(of(stage, "ENTRYPOINT")[0]), *listed(of(stage, "CMD")[0])]
        log = (self.root / f"{stage}.log").open("wb")
        with log:
            program = [self.path(word) for word in words]
            return subprocess.Popen(program, cwd=self.root, env=self.environment, stdout=log, stderr=log)

    def healthy(self, stage: str) -> bool:
        words = [self.path(word) for word in listed(of(stage, "HEALTHCHECK")[0].partition("CMD")[2])]
        return subprocess.run(words, env=self.environment, capture_output=True).returncode == 0


@pytest.mark.soak
def test_the_steps_of_the_images_build_and_run(tmp_path: Path) -> None:
    """What a builder would do, as far as it can be done without one; processes have the images' commands."""
    image = Image(tmp_path)
    image.build()
    where = [str(tmp_path / "venv" / "bin" / "python"), "-c", "import hush; print(hush.__file__)"]
    found = subprocess.run(where, env=image.environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path / "venv")), "from the wheel"
    made = image.hush("federation", "init", "made", "--members", "one", "--address", f"127.0.0.1:{free_port()}")
    assert made.returncode == 0, made.stderr
    for name, there in (("made", "federation"), ("federation/kits/one", "kit")):
        (tmp_path / there).rmdir()
        (tmp_path / name).rename(tmp_path / there)
    (tmp_path / "data" / "rows.csv").write_text(
        "a,b,label\n" + "".join(f"{n % 7},{n % 3},{n % 2}\n" for n in range(80))
    )
    running = []
    try:
        for stage in ("coordinator", "member"):
            assert not image.healthy(stage)
            running.append(image.start(stage))
            ends = time.monotonic() + 180
            while not image.healthy(stage):
                assert running[-1].poll() is None and time.monotonic() < ends, (tmp_path / f"{stage}.log").read_text()
        for folder in ("federation", "kit"):
            ends = time.monotonic() + 60
            while (said := image.hush("federation", "doctor", folder)).returncode and time.monotonic() < ends:
                time.sleep(1)
            assert said.returncode == 0, said.stdout
        (tmp_path / "witness" / "key").stat()
    finally:
        for child in reversed(running):
            child.terminate()
        ended = [child.wait(30) for child in running]
    assert ended[-1] == 130
    assert not image.healthy("member")


@pytest.mark.soak
def test_the_images_are_built_and_say_that_they_are_well() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("needs a Docker daemon")
    for stage in ("coordinator", "member"):
        words = [
            "docker",
            "build",
            "--file",
            "deploy/Dockerfile",
            "--target",
            stage,
            "--tag",
            f"hush-{stage}:test",
            ".",
        ]
        subprocess.run([*words, "."], cwd=ROOT, check=True)
    printed = subprocess.run(
        ["docker", "run", "--rm", "hush-coordinator:test", "code"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"[0-9a-f]{64}\n", printed.stdout)
    user = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint", "id", "hush-member:test", "-u"], capture_output=True, text=True
    )
    assert user.stdout == "10001\n"
