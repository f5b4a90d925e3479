"""Unknown keys are errors, autos become numbers, paths become absolute."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from deployments.config import AppConfig, ClientConfig, load
from deployments.config_file import ConfigError
from deployments.config_sections import ScheduleSection
from deployments.platform import resources
from deployments.registry import open_registry
from engine.adapters.store import open_store
from engine.config import ScheduleConfig

MIB = 1 << 20
MINIMAL = {"data_dir": "data", "base": {"path": "model", "name": "tiny"}}


def machine(root: Path, *, flags="fpu avx2", v2=None, v1=None, quota=None, total_kib=8 << 20):
    """A file system root that shows one machine."""
    files = {
        "proc/cpuinfo": f"processor : 0\nflags\t\t: {flags}\n",
        "proc/meminfo": f"MemTotal:       {total_kib} kB\n",
        "proc/self/cgroup": "0::/pod/box\n4:memory:/pod\n",
        "sys/fs/cgroup/pod/memory.max": "max" if v2 is None else str(v2),
    }
    if v1 is not None:
        files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(v1)
    if quota is not None:
        files["sys/fs/cgroup/pod/box/cpu.max"] = f"{quota * 100_000:.0f} 100000"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def with_replica(**replica):
    return load({**MINIMAL, "replica": replica}, environ={"LORAPLEX_HOME": "/srv"})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({**MINIMAL, "basis": 1}, "basis"),
        ({**MINIMAL, "base": {"path": "m", "name": "x", "nmae": 1}}, "base.nmae"),
        ({**MINIMAL, "replica": {"schedule": {"max_seq": 1}}}, "replica.schedule.max_seq"),
        ({**MINIMAL, "replica": {"schedule": {"max_seqs": 0}}}, "replica.schedule.max_seqs"),
        ({**MINIMAL, "replica": {"num_replicas": 3, "autoscaling": {"max_replicas": 2}}}, "bounds"),
        ({**MINIMAL, "replica": {"accounts": {"w_p": -1}}}, "w_p must be > 0"),
        ({**MINIMAL, "replica": {"accounts": {"local_floor": 2}}}, "local_floor must be <= 1"),
        ({**MINIMAL, "replica": {"accounts": {"order": "fair"}}}, "deficit"),
        ({**MINIMAL, "replica": {"memory": {"arena_bytes": "lots"}}}, "replica.memory.arena_bytes"),
        ({**MINIMAL, "ingress": {"registry_poll_s": 3}}, "ingress.registry_poll_s"),
        ({**MINIMAL, "router": {"load_factor": 1}}, "router.load_factor"),
        ({"base": {"path": "m", "name": "x"}}, "data_dir"),
        ({**MINIMAL, "store_options": {"read_timeouts": 1}}, "store_options.read_timeouts"),
        ({**MINIMAL, "store_options": {"read_timeout_s": 0}}, "read_timeout_s must be > 0"),
        ({**MINIMAL, "store_options": {"part_bytes": 1 << 20}}, "part_bytes must be 5242880"),
        ({**MINIMAL, "store": "s3://b/p?regoin=eu"}, "option 'regoin'"),
        ({**MINIMAL, "telemetry": {"metric": True}}, "telemetry.metric"),
        ({**MINIMAL, "telemetry": {"otlp_endpoint": "collector:4317"}}, "http://"),
    ],
)
def test_a_wrong_key_or_value_is_named(values, key):
    with pytest.raises(ConfigError, match=key):
        load(values, environ={})


def test_paths_start_at_the_file_or_at_home(tmp_path):
    file = tmp_path / "service.yaml"
    file.write_text(json.dumps(MINIMAL))
    config = load(file, environ={})
    assert config.base.path == tmp_path / "model"
    assert config.registry_url == f"sqlite://{tmp_path}/data/registry.db"
    assert config.store_url == f"file://{tmp_path}/data/objects"
    assert load(file, environ={"LORAPLEX_HOME": "/srv"}).data_dir == Path("/srv/data")


@pytest.mark.parametrize(
    "url", ["s3://AKID:hush@bucket/p", "s3://bucket/p?secret_key=hush", "s3://b?token=hush"]
)
def test_credentials_in_a_store_s_url_are_refused_and_not_repeated(url):
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as raised:
        load({**MINIMAL, "store": url}, environ={})
    assert "hush" not in raised.value.message


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a%20b", "é"])
def test_a_data_dir_may_have_any_name(tmp_path, name):
    values = {**MINIMAL, "data_dir": str(tmp_path / name)}
    config = load(values, environ={})
    open_registry(config.registry_url).close()
    open_store(config.store_url)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert {"registry.db", "objects"} <= {p.name for p in (tmp_path / name).iterdir()}


def test_unreadable_files_are_config_errors(tmp_path):
    with pytest.raises(ConfigError, match="absent"):
        load(tmp_path / "absent.yaml", environ={})
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="mapping"):
        load(tmp_path / "list.yaml", environ={})


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("avx2", "float32"), ("avx512_bf16", "bfloat16"), ("amx_tile amx_bf16", "bfloat16")],
)
def test_dtype_follows_the_processor(tmp_path, flags, dtype):
    root = machine(tmp_path, flags=flags)
    assert with_replica().engine_config(root).model.dtype == dtype
    assert with_replica(dtype="float32").engine_config(root).model.dtype == "float32"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [({}, 8 << 30), ({"v2": 2 << 30}, 2 << 30), ({"v1": 1 << 30}, 1 << 30)],
)
def test_memory_is_the_cgroup_limit(tmp_path, limit, expected):
    assert resources.memory_bytes(machine(tmp_path, **limit)) == expected


def test_memory_is_shared_between_replicas(tmp_path):
    root = machine(tmp_path, v2=6 << 30)
    memory = with_replica(num_replicas=2, device="fake").engine_config(root).memory
    assert memory.arena_bytes == (2048 - 512) * MIB // 2
    assert memory.host_bytes == (2048 - 512) * MIB // 4
    fixed = with_replica(memory={"arena_bytes": 5 * MIB}).engine_config(root).memory
    assert fixed.arena_bytes == 5 * MIB


def test_threads_follow_quota_and_replicas(tmp_path):
    root = machine(tmp_path, quota=1.5)
    assert resources.num_cpus(root) == 1
    assert with_replica(num_replicas=2).engine_config(root).model.threads == 1
    assert with_replica(threads=3).engine_config(root).model.threads == 3


def test_a_machine_is_shared_by_the_most_replicas_that_there_may_be(tmp_path):
    root = machine(tmp_path, v2=6 << 30)
    scaling = {"max_replicas": 2}
    memory = with_replica(autoscaling=scaling, device="fake").engine_config(root).memory
    assert memory.arena_bytes == (2048 - 512) * MIB // 2


@pytest.mark.parametrize(
    ("device", "depth", "expected"),
    [("cpu", "auto", 0), ("cuda", "auto", 1), ("fake", "auto", 0), ("cpu", 1, 1), ("cuda", 0, 0)],
)
def test_the_pipeline_s_depth_follows_the_device(device, depth, expected):
    memory = {"arena_bytes": 1 << 20}
    config = with_replica(device=device, memory=memory, schedule={"depth": depth, "max_seqs": 5})
    schedule = config.engine_config().schedule
    assert (schedule.depth, schedule.max_seqs) == (expected, 5)


def test_opentelemetry_s_own_variables_complete_the_config():
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert load(MINIMAL, environ={}).telemetry.otlp_endpoint == ""
    assert load(MINIMAL, environ=env).telemetry.otlp_endpoint == "http://collector:4318"
    own = {**MINIMAL, "telemetry": {"otlp_endpoint": "https://other"}}
    assert load(own, environ=env).telemetry.otlp_endpoint == "https://other"
    said = {
        **env,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b,x-other=c",
        "OTEL_RESOURCE_ATTRIBUTES": "zone=b%2Fc,nothing,team=x",
        "OTEL_SERVICE_NAME": "chat",
    }
    mine = {**MINIMAL, "telemetry": {"resource_attributes": {"team": "y"}}}
    telemetry = load(mine, environ=said).telemetry
    assert telemetry.otlp_headers == {"x-token": "a b", "x-other": "c"}
    assert telemetry.resource_attributes == {"zone": "b/c", "team": "y", "service.name": "chat"}
    assert "x-token" not in repr(telemetry)
    off = load(own, environ={"OTEL_SDK_DISABLED": "true"})
    assert not off.telemetry.metrics and not off.engine_config().measures
    with pytest.raises(ConfigError, match="http://"):
        load(MINIMAL, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"})


def test_the_schedule_section_has_every_key_of_the_engine_s():
    assert [f.name for f in fields(ScheduleConfig)] == list(ScheduleSection.model_fields)


def test_this_machine_resolves():
    engine = with_replica().engine_config()
    assert engine.model.threads >= 1
    assert engine.memory.arena_bytes >= 64 * MIB


def test_a_gpu_finds_its_arena_itself_unless_it_is_named(tmp_path):
    root = machine(tmp_path)
    found = with_replica(device="cuda", memory={"utilisation": 0.5}).engine_config(root)
    assert (found.memory.arena_bytes, found.memory.utilisation) == (None, 0.5)
    assert found.model.dtype == "bfloat16"
    named = with_replica(device="cuda", memory={"arena_bytes": 5 * MIB}).engine_config(root)
    assert named.memory.arena_bytes == 5 * MIB


@pytest.mark.parametrize(
    ("num_gpus", "device", "num_replicas", "gpus"),
    [(0, "cpu", 2, 0), (0.5, "cpu", 2, 0), (1, "cuda", 1, 1), (2, "cuda", 2, 1), (8, "cuda", 2, 1)],
)
def test_an_auto_device_is_settled_by_the_gpus_there_are(num_gpus, device, num_replicas, gpus):
    placed = with_replica(device="auto", num_replicas=2).placed(num_gpus).replica
    assert (placed.device, placed.num_replicas, placed.gpus) == (device, num_replicas, gpus)


def test_an_auto_device_narrows_the_bounds_of_autoscaling():
    scaling = {"min_replicas": 2, "max_replicas": 8}
    wanted = with_replica(device="auto", num_replicas=4, autoscaling=scaling, num_gpus=0.5)
    placed = wanted.placed(2).replica
    assert (placed.num_replicas, placed.gpus) == (4, 0.5)
    assert (placed.autoscaling.min_replicas, placed.autoscaling.max_replicas) == (2, 4)


def test_a_named_device_stays_and_an_unsettled_one_is_no_engine_s():
    assert with_replica(device="cuda", num_replicas=2).placed(0).replica.num_replicas == 2
    assert with_replica(device="cpu").placed(4).replica.device == "cpu"
    with pytest.raises(ConfigError, match="device is auto"):
        with_replica(device="auto").engine_config()


def test_context_is_checked_against_the_model(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')

    def context(wanted):
        values = {
            **MINIMAL,
            "base": {"path": str(tmp_path), "name": "x"},
            "replica": {"max_model_len": wanted},
        }
        return load(values, environ={}).max_model_len()

    assert context("auto") == 512
    assert context(100) == 100
    with pytest.raises(ConfigError, match="513.*512"):
        context(513)


def test_config_is_frozen_and_travels_as_json():
    config = with_replica(schedule={"max_seqs": 7})
    with pytest.raises(ValueError, match="frozen"):
        config.base = None
    assert AppConfig.model_validate(config.model_dump(mode="json")) == config


def test_client_config_reads_the_environment():
    env = {"LORAPLEX_URL": "http://x:1", "LORAPLEX_ADMIN_KEY": "lp-k"}
    assert ClientConfig.from_environment(env) == ClientConfig("http://x:1", "lp-k")
    assert ClientConfig.from_environment({}).url == "http://127.0.0.1:8000"


def test_a_serve_config_is_read_for_its_arguments(tmp_path, project):
    cluster = load(project / "deployments" / "cluster.yaml", environ={})
    assert cluster.registry.startswith("redis://") and cluster.store.startswith("s3://")
    assert cluster.replica.device == "cuda"
    quick = load(
        project / "deployments" / "quickstart.yaml", environ={"LORAPLEX_HOME": str(tmp_path)}
    )
    assert quick.data_dir == tmp_path / ".loraplex" / "quickstart"
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    inner.write_text(json.dumps(MINIMAL))
    application = {"import_path": "deployments.app:build", "args": {"config": str(inner)}}
    outer.write_text(json.dumps({"applications": [application]}))
    assert load(outer, environ={}).data_dir == tmp_path / "data"


@pytest.mark.parametrize("applications", [[], None, ["x"], [{"import_path": "other:app"}]])
def test_a_serve_config_of_others_is_refused(tmp_path, applications):
    path = tmp_path / "serve.yaml"
    path.write_text(json.dumps({"applications": applications}))
    with pytest.raises(ConfigError, match="import_path deployments.app:build"):
        load(path, environ={})
