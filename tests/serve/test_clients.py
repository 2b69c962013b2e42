"""Several clients: who is who, what each may have at once, whose turn it is, and that no text holds a token."""

from __future__ import annotations

import httpx
import pytest

from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, ServiceBusy
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.clients import HIDDEN, Client, Clients
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import ON_TWO, answer, make_service
from tests.waiting import PATIENCE_S, until

FIRST, SECOND = "first-token-of-16-chars", "second-token-of-16-chars"
FILE = f"""
[first]
token = "{FIRST}"
max_queued = 2
max_running = 1
may_pause = true

[second]
token = "{SECOND}"
"""


def write(folder, text, mode=0o600):
    path = folder / "clients.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def ask(service, client, source):
    return service.submit(EvaluationRequest(problem="AllReduce", source=source, config=ON_TWO), client).id


def test_clients_are_read(tmp_path):
    clients = Clients.read(write(tmp_path, FILE))
    assert list(clients) == [
        Client("first", max_queued=2, max_running=1, may_pause=True),
        Client("second", may_pause=False),
    ]
    assert clients.authorized(f"Bearer {SECOND}".encode()).name == "second"
    assert clients.authorized(b"Bearer wrong") is clients.authorized(b"") is clients.authorized(SECOND.encode()) is None
    assert FIRST not in repr(clients)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no client"),
        (f'token = "{FIRST}"', "expected a table"),
        (f'[a]\ntoken = "{FIRST}', "is no TOML"),
        ('[a]\ntoken = "short-secret"', "client a: expected one word of at least 16"),
        (f'[a]\ntoken = "{FIRST}"\n[b]\ntoken = "{FIRST}"', "two clients have the same token"),
        (f'[a]\ntoken = "{FIRST}"\nmax_queue = 3', "client a: max_queue: Extra inputs"),
        (f'[a]\ntoken = "{FIRST}"\nmax_running = 0', "client a: max_running: Input should be greater"),
        (f'[a]\ntoken = ["{FIRST}"]', "client a: token: Input should be a valid string"),
        (f'["a b"]\ntoken = "{FIRST}"', "a client's name has"),
    ],
)
def test_files_of_clients_without_sense(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        Clients.read(write(tmp_path, text))
    assert words in str(error.value)
    assert FIRST not in str(error.value) and "short-secret" not in str(error.value)


def test_a_file_of_clients_is_its_user_s_alone(tmp_path):
    with pytest.raises(ConfigError, match="other users have access to it: chmod 600"):
        Clients.read(write(tmp_path, FILE, mode=0o644))
    with pytest.raises(ConfigError, match="No such file"):
        Clients.read(tmp_path / "none")


def test_a_quota_of_waiting_evaluations(owners):
    limited, other = Client("limited", max_queued=1), Client("other")
    with make_service(owners, max_begun=1, clients=[limited, other]) as service:
        running = ask(service, limited, "run")
        ask(service, limited, "speedup 1")
        with pytest.raises(ServiceBusy, match="1 evaluations of limited wait already, its quota"):
            ask(service, limited, "speedup 2")
        assert ask(service, other, "speedup 2"), "the quota is its own"
        assert service.load() == ({"limited": 1, "other": 1}, {"limited": 1})
        owners.opened[0].goes_on.set()
        assert answer(service, running, limited).passed


def test_a_quota_of_running_evaluations_leaves_room_for_others(owners):
    limited, other = Client("limited", max_running=1), Client("other")
    with make_service(owners, clients=[limited, other]) as service:
        first, second = ask(service, limited, "compile 1"), ask(service, limited, "compile 2")
        third = ask(service, other, "compile 3")
        until(lambda: service.status().compiling == 2)
        assert service.status().queued == 1 and service.find(second, limited).state == "queued"
        owners.opened[0].goes_on.set()
        assert all(answer(service, each, limited).passed for each in (first, second))
        assert answer(service, third, other).passed


def test_clients_take_turns(owners):
    many, few = Client("many"), Client("few")
    with make_service(owners, max_begun=1, clients=[many, few]) as service:
        begun = ask(service, many, "run")
        evaluations = [ask(service, many, f"speedup {number}") for number in range(1, 5)]
        late = [ask(service, few, f"speedup {number}") for number in (11, 12)]
        owners.opened[0].goes_on.set()
        for client, ids in ((many, [begun, *evaluations]), (few, late)):
            assert all(answer(service, each, client).passed for each in ids)
        numbers = [source.split()[1] for source in owners.requested]
        assert numbers == ["2", "1", "11", "2", "12", "3", "4"], "the first stands for run"


def test_who_asks_for_the_same_has_its_own_turn(owners):
    many, few = Client("many"), Client("few")
    with make_service(owners, max_begun=1, clients=[many, few]) as service:
        ask(service, many, "run")
        for number in range(1, 4):
            ask(service, many, f"speedup {number}")
        shared = ask(service, many, "speedup 9")
        assert ask(service, few, "speedup 9") == shared
        owners.opened[0].goes_on.set()
        answer(service, shared, few)
        until(lambda: len(owners.requested) == 5)
        assert [source.split()[1] for source in owners.requested] == ["2", "1", "9", "2", "3"], "and is evaluated once"


def test_an_evaluation_is_known_to_those_who_asked(owners):
    mine, other = Client("mine"), Client("other")
    with make_service(owners) as service:
        evaluation = ask(service, mine, "run")
        for use in (service.find, service.give_up):
            with pytest.raises(EvaluationNotFound):
                use(evaluation, other)
        assert ask(service, other, "run") == evaluation
        service.give_up(evaluation, mine)
        service.give_up(evaluation, mine)
        assert service.find(evaluation, other).is_wanted, "one client gives up for itself"


def test_pausing_is_for_those_who_may(owners, tmp_path):
    clients = Clients.read(write(tmp_path, FILE))
    with make_service(owners, clients=list(clients)) as service, HttpServer(service, clients) as server:
        refused = post(server, "/v1/pause", SECOND)
        assert refused.status_code == 403 and "client second may not pause" in refused.json()["message"]
        assert post(server, "/v1/resume", SECOND).status_code == 403
        assert post(server, "/v1/pause?wait_s=5", FIRST).json() == {"idle": True}
        assert post(server, "/v1/resume", FIRST).status_code == 200


def test_no_answer_holds_a_token(owners, tmp_path):
    clients = Clients.read(write(tmp_path, FILE))
    with make_service(owners, clients=list(clients)) as service, HttpServer(service, clients) as server:
        body = {"problem": FIRST, "source": "x", "config": {}}
        requested = httpx.post(f"{server.url}/v1/evaluations", json=body, headers=bearer(SECOND), trust_env=False)
        assert requested.status_code == 404 and f"no problem '{HIDDEN}'" in requested.json()["message"]
        for path in (f"/v1/{FIRST}", f"/v1/evaluations/{FIRST}"):
            assert FIRST not in httpx.get(server.url + path, headers=bearer(SECOND), trust_env=False).text
        wrong = httpx.get(f"{server.url}/v1/status", headers=bearer(FIRST + "x"), trust_env=False)
        assert wrong.status_code == 401 and FIRST not in wrong.text
        with RemoteEvaluator(server.url, SECOND + "x") as client, pytest.raises(ConfigError) as error:
            client.evaluate(find_problem("AllReduce"), "speedup 1", ON_TWO)
        assert SECOND not in str(error.value) and SECOND not in repr(client)


def test_no_url_holds_a_token():
    with pytest.raises(ConfigError, match="holds no name or password") as error:
        RemoteEvaluator(f"http://me:{FIRST}@127.0.0.1:8900")
    assert FIRST not in str(error.value)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def post(server, path, token):
    return httpx.post(server.url + path, headers=bearer(token), trust_env=False, timeout=PATIENCE_S)
