"""The token is read from a file or the environment, must be long enough, and is never logged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lightning_ding.distributed.flask_fs.auth import read_token

TOKEN = "0123456789abcdef"


def test_the_token_of_a_file_goes_before_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTNING_DING_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("LIGHTNING_DING_TOKEN", "of-the-environment")
    assert read_token(None) == "of-the-environment"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(str(tmp_path / "token")) == TOKEN


@pytest.mark.parametrize("token", ["", "short", TOKEN[:-1], f"{TOKEN} {TOKEN}", f"{TOKEN}\n{TOKEN}", f"{TOKEN}é"])
def test_a_token_that_is_easily_guessed_or_fits_no_header_is_refused_and_not_shown(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("LIGHTNING_DING_TOKEN", token)
    for source in (str(tmp_path / "token"), None):
        with pytest.raises(ValueError, match="must be at least 16 visible ASCII characters") as caught:
            read_token(source)
        assert not token or token not in str(caught.value)


def test_a_missing_file_is_an_error_and_not_no_token(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_token(str(tmp_path / "none"))


def test_a_file_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        read_token(str(file))
        assert not caplog.messages
        file.chmod(0o644)
        assert read_token(str(file)) == TOKEN
    assert "can be read by other users" in caplog.text
    assert TOKEN not in caplog.text
