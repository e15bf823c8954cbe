"""Secret keys: options give them, ranks with different keys do not meet, and no text shows a key."""

import os
import re
import sys

import numpy as np
import pytest
import ranks
import unisono

KEY = "5ec2e7" + "0" * 58
OTHER = "5ec2e7" + "1" * 58


def sum_with(key, security):
    group = unisono.join(transport="tcp", key=key, security=security)
    x = np.ones(3, np.int32)
    group.all_reduce(x)
    assert KEY not in repr(group)
    return int(x[0])


@pytest.mark.parametrize("key, security", [(KEY, "required"), (KEY, None), (KEY, "off"), (None, "off")])
def test_ranks_with_the_same_key_add_up(tmp_path, key, security):
    assert ranks.run(sum_with, 2, tmp_path, (key, security)) == [2, 2]


def join_with_own_key():
    with pytest.raises(unisono.Error) as caught:
        unisono.join(transport="tcp", key=KEY if os.environ["RANK"] == "0" else OTHER, join_timeout=3)
    assert KEY not in str(caught.value) and OTHER not in str(caught.value)
    return "refused"


def test_ranks_with_different_keys_do_not_meet(tmp_path):
    assert ranks.run(join_with_own_key, 2, tmp_path) == ["refused", "refused"]


def alone(tmp_path, **options):
    return unisono.join(rank=0, world_size=1, rendezvous=f"file://{tmp_path}/alone", **options)


@pytest.mark.parametrize("options, error, words", [
    ({"key": KEY[:-1]}, unisono.Invalid, "a key has 64 hexadecimal digits"),
    ({"key": KEY.encode()}, TypeError, "key cannot be of this type"),
    ({"key": [KEY]}, TypeError, "key cannot be of this type"),
    ({"security": "of"}, ValueError, "security: 'of'; wanted: automatic, required or off"),
    ({"security": "required"}, unisono.Invalid, "there is no key"),
])
def test_errors_name_the_option_and_do_not_show_the_key(tmp_path, options, error, words):
    with pytest.raises(error, match=words) as caught:
        alone(tmp_path, **options)
    assert KEY[:-1] not in str(caught.value)


@pytest.mark.parametrize("options, error, words", [
    ({"key": [KEY]}, TypeError, "key cannot be of this type"),
    ({"key": KEY.encode()}, TypeError, "key cannot be of this type"),
    ({"key": KEY[:-1]}, unisono.Invalid, "ElasticOptions::key: a key has 64 hexadecimal digits"),
    ({"security": "of"}, ValueError, "security: 'of'; wanted: automatic, required or off"),
    ({"security": "required"}, unisono.Invalid, "there is no key"),
])
def test_errors_of_an_elastic_run_name_the_option_and_do_not_show_the_key(options, error, words):
    with pytest.raises(error, match=words) as caught:
        unisono.Elastic.join(run_id="x", found=True, interface="127.0.0.1", tensor_elements=[1], **options)
    assert KEY[:-1] not in str(caught.value)


def test_a_key_file_that_others_can_read_is_refused_by_name(tmp_path, monkeypatch):
    path = tmp_path / "job.key"
    path.write_text(KEY)
    path.chmod(0o644)
    monkeypatch.setenv("UNISONO_KEY_FILE", str(path))
    with pytest.raises(unisono.Invalid, match=re.escape(str(path))) as caught:
        alone(tmp_path)
    assert KEY not in str(caught.value)
    path.chmod(0o600)
    assert alone(tmp_path, security="required").world_size == 1


def test_options_of_the_torch_backend(tmp_path):
    pytest.importorskip("torch")
    code = f"""
import datetime
import torch
import torch.distributed as dist
import unisono.torch as ut

options = ut.Options(key="{KEY}", security="required")
assert "{KEY}" not in repr(options)
try:
    ut.Options(security="of")
except ValueError as error:
    assert "required or off" in str(error)
else:
    raise AssertionError("security of")
dist.init_process_group("unisono", store=dist.FileStore("{tmp_path}/store", 1), rank=0, world_size=1, pg_options=options)
x = torch.ones(2)
dist.all_reduce(x)
assert x.sum() == 2
dist.destroy_process_group()
print("done")
"""
    done = ranks.subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "done" in done.stdout, done.stderr
