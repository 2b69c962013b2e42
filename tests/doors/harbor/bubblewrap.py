"""An environment of Harbor for machines without a container engine: the folders of an image, in bubblewrap.

Of a Dockerfile it obeys COPY and WORKDIR; programs are this machine's. It stands for what a provider of Harbor does
with an image, so that agents, trials and verifiers are the package's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

OWN = ("app", "logs", "opt", "solution", "tests", "tmp")
"""Folders of the image; all others are this machine's, and cannot be written."""


class BubblewrapEnvironment(BaseEnvironment):
    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"{self.environment_dir} holds no Dockerfile")

    async def start(self, force_build: bool) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pkb-harbor-"))
        self._workdir = "/"
        for name in (*OWN, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir()
        for line in (self.environment_dir / "Dockerfile").read_text().splitlines():
            match line.split():
                case ["COPY", source, target]:
                    shutil.copytree(self.environment_dir / source, self._inside(target), dirs_exist_ok=True)
                case ["WORKDIR", folder]:
                    self._workdir = folder

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        assert path.strip("/").split("/")[0] in OWN, path
        return self._root / path.strip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._inside(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        words = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--tmpfs", "/", "--dev", "/dev"]
        for name in sorted(os.listdir("/")):
            path = Path("/", name)
            if path.is_symlink():
                words += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir() and name not in (*OWN, "dev", "proc", "sys"):
                words += ["--ro-bind", str(path), str(path)]
        for name in OWN:
            words += ["--bind", str(self._root / name), f"/{name}"]
        words += [
            "--proc",
            "/proc",
            "--chdir",
            cwd or self._workdir,
            "--clearenv",
            "--setenv",
            "PATH",
            os.environ["PATH"],
        ]
        for name, value in {**self._merged(env)}.items():
            words += ["--setenv", name, value]
        process = await asyncio.create_subprocess_exec(
            *words, "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        assert process.returncode is not None
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)

    def _merged(self, env: dict[str, str] | None) -> dict[str, str]:
        return self._merge_env(env) or {}
