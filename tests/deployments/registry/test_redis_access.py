"""How a Redis is reached: what URLs say, verified TLS, ACL users, Sentinels with passwords."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.registry import open_registry
from deployments.registry.redis_client import ACL
from deployments.registry.redis_url import RedisSettings, with_credentials, without_secrets
from deployments.registry.registry import ABSENT
from engine.errors import LoraplexError, Unavailable
from tests.support.proxies import Proxy, certificate
from tests.support.redis_servers import RedisServer, server, until


def test_a_url_of_one_server():
    assert RedisSettings.parse("redis://host") == RedisSettings((("host", 6379),))
    settings = RedisSettings.parse(
        "rediss://ann:p%40ss%3Aw@h.example:7000/3?ca_file=/etc/ca.pem&prefix=x&replicas=2"
        "&confirm_s=0.5&timeout_s=3&max_connections=4"
    )
    assert settings == RedisSettings(
        nodes=(("h.example", 7000),),
        db=3,
        tls=True,
        username="ann",
        password="p@ss:w",
        ca_file="/etc/ca.pem",
        prefix="x",
        replicas=2,
        confirm_s=0.5,
        timeout_s=3,
        max_connections=4,
    )
    assert "p@ss:w" not in repr(settings) + settings.where


def test_a_url_of_sentinels():
    settings = RedisSettings.parse(
        "redis+sentinel://:pw@a:1,[::1],c:3/main/2?sentinel_username=s&sentinel_password=t"
    )
    assert settings == RedisSettings(
        nodes=(("a", 1), ("::1", 26379), ("c", 3)),
        service="main",
        db=2,
        password="pw",
        sentinel_username="s",
        sentinel_password="t",
    )
    assert RedisSettings.parse("rediss+sentinel://a/main").tls


@pytest.mark.parametrize(
    "url, says",
    [
        ("redis://", "is not HOST"),
        ("redis://h:99999", "is not HOST"),
        ("redis://a,b", "Sentinels"),
        ("redis://h/one", "number of a database"),
        ("redis://h/1/2", "number of a database"),
        ("redis+sentinel://h", "no service"),
        ("redis+sentinel://h/main/x", "number of a database"),
        ("redis://h?ssl=no", "'ssl' is no option"),
        ("redis://h?prefix=a{b", "prefix can't be"),
        ("redis://h?prefix=a&prefix=b", "given twice"),
        ("redis://h?timeout_s=0", "timeout_s can't be '0'"),
        ("redis://h?timeout_s=nan", "timeout_s can't be 'nan'"),
        ("redis://h?replicas=-1", "replicas can't be"),
        ("redis://h?ca_file=/x", "needs TLS"),
        ("redis://u:hunter2@h?nonsense", ""),
        ("redis://u:hunter2@h?sentinel_password=hunter2&x=1", "is no option"),
    ],
)
def test_a_url_that_says_nothing_sensible_is_refused(url, says):
    with pytest.raises(LoraplexError) as told:
        open_registry(url)
    assert says in told.value.message and "redis://host:6379/0" in told.value.message
    assert "hunter2" not in told.value.message


@given(user=st.text(max_size=8), password=st.text(min_size=1, max_size=20))
def test_credentials_from_elsewhere_arrive_whole(user, password):
    for hosts in ("redis://h:1/2", "rediss+sentinel://h:1,g/s?prefix=p"):
        plain = RedisSettings.parse(hosts)
        url = with_credentials(hosts, username=user, password=password)
        settings = RedisSettings.parse(url)
        assert (settings.username or "", settings.password) == (user, password)
        assert (settings.nodes, settings.db, settings.prefix) == (
            plain.nodes,
            plain.db,
            plain.prefix,
        )
        assert f":{password}@" not in without_secrets(url) or password == "***"


def test_a_url_keeps_the_credentials_that_it_has():
    url = "redis://ann:one@h"
    assert with_credentials(url, username="bob", password="two") == url
    assert with_credentials("redis://ann@h", password="two") == "redis://ann:two@h"
    assert with_credentials("sqlite:///x", password="two") == "sqlite:///x"
    assert with_credentials("redis://h") == "redis://h"
    sentinels = with_credentials("redis+sentinel://h/s", sentinel_password="t&=")
    assert RedisSettings.parse(sentinels).sentinel_password == "t&="


# Real servers ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


def test_tls_is_verified(redis_server, files, tmp_path):
    stranger = certificate(tmp_path / "stranger")
    elsewhere = certificate(tmp_path / "elsewhere", address="127.0.0.9")
    with Proxy(redis_server.port, files) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?prefix=tls"
        registry = open_registry(f"{url}&ca_file={files.ca_file}")
        assert registry.put("a", {"n": 1}, ABSENT) == registry.get("a").rev
        registry.check()
        registry.close()
        for untrusted in (url, f"{url}&ca_file={stranger.ca_file}"):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                open_registry(untrusted)
        with pytest.raises(Unavailable, match="No such file|can't be used"):
            open_registry(f"{url}&ca_file={tmp_path}/none.pem")
        with pytest.raises(Unavailable):  # no TLS where it is spoken
            open_registry(f"redis://127.0.0.1:{proxy.port}/0?timeout_s=0.5&confirm_s=0.1")
    with (
        Proxy(redis_server.port, elsewhere) as proxy,
        pytest.raises(Unavailable, match="IP address mismatch"),
    ):
        open_registry(f"rediss://127.0.0.1:{proxy.port}/0?ca_file={elsewhere.ca_file}")


@pytest.fixture
def guarded(tmp_path):
    """Its user `loraplex` may do what the documents say, and `reader` only read."""
    with server(tmp_path / "redis") as one:
        operator = one.client()
        operator.execute_command("ACL", "SETUSER", "loraplex", "on", ">s3:c/r@t", *ACL.split())
        operator.execute_command(
            "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection", "+info"
        )
        operator.execute_command("ACL", "SETUSER", "default", "off")
        yield one


def test_a_user_with_the_documented_rights_can_do_everything(guarded):
    registry = open_registry(f"redis://loraplex:s3%3Ac%2Fr%40t@127.0.0.1:{guarded.port}/0")
    rev = registry.put("a", {"n": 1}, ABSENT)
    assert [e.key for e in registry.list("").entries] == ["a"]
    registry.confirm()
    registry.delete("a", rev)
    assert len(registry.changes(rev).events) == 1
    assert registry.restore([("b", {})]) > rev
    registry.check()
    registry.close()


@pytest.mark.parametrize(
    "user, says",
    [
        ("", "user and the password"),
        ("loraplex:no@", "user and the password"),
        ("reader:pw@", "~{loraplex}:"),
    ],
)
def test_a_user_without_rights_is_told_what_is_missing(guarded, user, says):
    with pytest.raises(Unavailable, match="can't be used") as told:
        open_registry(f"redis://{user}127.0.0.1:{guarded.port}/0")
    assert told.value.code == "registry_refused" and says in told.value.message


def test_sentinels_and_servers_with_passwords_of_their_own(tmp_path):
    master = RedisServer(tmp_path / "m", ("--requirepass", "server"), password="server")
    sentinel = RedisServer(
        tmp_path / "s", ("--requirepass", "watch"), password="watch", sentinel=True
    )
    sentinel.folder.mkdir()
    (sentinel.folder / "sentinel.conf").write_text(
        f"sentinel monitor registry 127.0.0.1 {master.port} 1\nsentinel auth-pass registry server\n"
    )
    try:
        master.start()
        sentinel.start()
        until(lambda: sentinel.client().sentinel_master("registry")["flags"] == "master")
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/registry"
        good = with_credentials(url, password="server", sentinel_password="watch")
        registry = open_registry(good)
        assert registry.put("a", {}, ABSENT) > 0
        registry.close()
        with pytest.raises(Unavailable):
            open_registry(with_credentials(url, password="server"))
        with pytest.raises(Unavailable):
            open_registry(with_credentials(url, password="no", sentinel_password="watch"))
    finally:
        sentinel.kill()
        master.kill()
