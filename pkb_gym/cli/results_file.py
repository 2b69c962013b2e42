"""Results of a folder's evaluation: what was judged before, under the same configuration."""

from __future__ import annotations

from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.setting_differences import refuse_differences


class ResultsFile(AttemptFile):
    """The results of a folder's sources.

    Where a file has several lines for one source, the last one counts.
    """

    def __init__(self, path: Path, requested: EvalConfig) -> None:
        """Opens or makes the file.

        Raises:
            ConfigError: it holds results under another configuration or something else, or cannot be opened, or
                another process writes it.
        """
        super().__init__(path, writer="pkb eval-dir", option="--output")
        try:
            for result in self.attempts:
                refuse_differences(path, dict(result.requested), dict(requested), "--output")
        except ConfigError:
            self.close()
            raise
        self._results = {result.file: result for result in self.attempts}

    def result(self, file: str) -> Attempt:
        """The last result of a file that has one."""
        return self._results[file]

    def judged(self, file: str, source_sha256: str) -> Feedback | None:
        """The result of that very source, None where there is none or where this machine could not judge it."""
        result = self._results.get(file)
        feedback = None if result is None else result.feedback
        if feedback is None or feedback.source_sha256 != source_sha256:
            return None
        return None if feedback.failure in (Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY) else feedback

    def append(self, attempt: Attempt) -> None:
        """Writes one result through to the disk.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        super().append(attempt)
        self._results[attempt.file] = attempt
