"""Settings from the environment: the log, by level and by subject."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

import tritium as tt
from tritium import settings

SCRIPT = """
import tritium as tt
x = tt.ones((3, 5))
tt.compile(lambda v: tt.softmax(v * 2) + 1)(x)
x.T.reshape(15)
tt.memory.trim()
"""


def log_of_script(words: str, script: str = SCRIPT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, encoding="utf-8", timeout=120, env=os.environ | {"TRITIUM_LOG": words},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_debug_logs_kernels_compiles_and_memory() -> None:
    log = log_of_script("debug")
    assert "tritium.kernels DEBUG softmax(f32[3,5]) on cpu: kernel" in log
    assert "tritium.compile DEBUG <lambda>: 3 calls written" in log
    assert "tritium.memory DEBUG a view needs a hidden copy of 60 bytes" in log
    assert "tritium.memory DEBUG trim of cpu:" in log


def test_subjects_select_their_lines_and_an_unknown_one_is_named() -> None:
    log = log_of_script("compile, Memory,loud")
    lines = log.splitlines()
    assert "TRITIUM_LOG=loud is not a logging level or subject" in lines[0]
    assert all(subject in lines[0] for subject in settings.SUBJECTS)
    assert {line.split()[2] for line in lines[1:]} == {"tritium.compile", "tritium.memory"}


def test_nothing_imports_logging_while_nobody_listens() -> None:
    script = SCRIPT + "\nimport sys; sys.stderr.write(str('logging' in sys.modules))"
    assert log_of_script("", script) == "False"


@pytest.mark.parametrize("subject", settings.SUBJECTS)
def test_a_subject_has_a_listener_at_its_level_only(subject: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, f"tritium.{subject}"):
        assert settings.listener(subject) is None
        logger = settings.listener(subject, settings.INFO)
        assert logger is not None
        assert logger.name == f"tritium.{subject}"
    with caplog.at_level(logging.DEBUG, "tritium"):
        assert settings.listener(subject) is not None


def test_a_choice_names_the_kernels_that_did_not_take_the_call(caplog: pytest.LogCaptureFixture) -> None:
    backend = tt.device("cpu").backend
    kernels = backend.kernels[tt.ops.exp]
    if len(kernels) < 2:
        pytest.skip("there is one kernel only")
    with caplog.at_level(logging.DEBUG, "tritium.kernels"):
        tt.backends._log_choice(
            settings.listener("kernels"), backend.device, tt.ops.exp, (tt.Spec((7,)),), kernels, kernels[-1]
        )
        tt.backends._log_choice(
            settings.listener("kernels"), backend.device, tt.ops.exp, (tt.Spec((7,)),), kernels, None
        )
    assert caplog.messages[0] == f"exp(f32[7]) on cpu: kernel {kernels[-1].name}; not taken by {kernels[0].name}"
    assert caplog.messages[1] == "exp(f32[7]) on cpu: no kernel takes it"


def test_a_kernel_is_logged_when_it_is_chosen_not_at_every_call(caplog: pytest.LogCaptureFixture) -> None:
    x = tt.ones((3, 1, 41))
    tt.ops.exp.forget()  # other shapes may have chosen for this one too
    with caplog.at_level(logging.DEBUG, "tritium.kernels"):
        for _ in range(5):
            tt.exp(x)
    assert sum(m.startswith("exp(f32[3,1,41]) on cpu: kernel ") for m in caplog.messages) == 1
