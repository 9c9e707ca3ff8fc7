"""Joins over PostgreSQL's tables, through the real program: random writes to the database beside random reads, while Headwater, PostgreSQL and
the connection between them end in all manners, columns take the place of others, and tables are emptied. Headwater may take less memory than the tables hold, so that what it has loaded goes
and is loaded again all the while. After that every join equals the same join in SQL, and at no time did a read go back or
miss what its reader had written. All of it with changes told by the log, and by triggers, with one shard and with several.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres

HEADWATER_PG_SECONDS says for how long each at least (15), HEADWATER_PG_CHANGES how many rows are changed at least (0), HEADWATER_PG_SEED which history, HEADWATER_PG_BIN where the programs of PostgreSQL are (those of
the newest version that Debian has installed; `.ci/run` runs all of it once more with a newer one). Needs these, psycopg, redis and pytest.
"""

import contextlib
import glob
import os
import pathlib
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import psycopg
import pytest
import redis

SECONDS = float(os.environ.get("HEADWATER_PG_SECONDS", "15"))
CHANGES = int(os.environ.get("HEADWATER_PG_CHANGES", "0"))
SEED = int(os.environ.get("HEADWATER_PG_SEED", "1"))
PROGRAM = os.path.abspath(os.environ.get("HEADWATER", "target/release/headwater"))
PROGRAMS = [os.environ["HEADWATER_PG_BIN"]] if "HEADWATER_PG_BIN" in os.environ else sorted(glob.glob("/usr/lib/postgresql/*/bin"))
USERS = [f"u{n}" for n in range(24)]
POSTERS = [f"p{n}" for n in range(200)]
# Posts of each poster, and about how long one is: more in all than Headwater may take.
POSTS, POST_BYTES, BOUND = 30, 4000, 24 << 20
# Each further shard needs room for its clients, and holds what it reads of others. With more than this, a run may evict nothing.
BOUND_SHARD = 4 << 20

pytestmark = pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed")


class Postgres:
    """A PostgreSQL of our own, in a folder of its own, with a socket there."""

    def __init__(self, wal_level, settings=(), of=None):
        self.folder = tempfile.mkdtemp(prefix="hw-pg-", dir="/tmp")
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        self.wal_level, self.settings, self.process = wal_level, settings, None
        if of:
            subprocess.run(["cp", "-a", f"{of.folder}/data", self.folder], check=True, user=self.user)
        else:
            self.run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-D", f"{self.folder}/data")
        if not of:
            self.start()

    def run(self, name, *words):
        subprocess.run([f"{PROGRAMS[-1]}/{name}", *words], check=True, user=self.user, cwd=self.folder, stdout=subprocess.DEVNULL)

    def start(self):
        words = ["-D", f"{self.folder}/data", "-k", self.folder]
        for setting in ["listen_addresses=", "fsync=off", f"wal_level={self.wal_level}", "max_slot_wal_keep_size=1GB", *self.settings]:
            words += ["-c", setting]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(f"{self.folder}/log", "ab") as log:
                self.process = subprocess.Popen(
                    [f"{PROGRAMS[-1]}/postgres", *words], user=self.user, cwd=self.folder, stdout=log, stderr=log
                )
            while self.process.poll() is None:
                with contextlib.suppress(psycopg.Error):
                    self.connect().close()
                    return
                time.sleep(0.02)
        raise TimeoutError("PostgreSQL does not start")

    def connect(self):
        return psycopg.connect(f"host={self.folder} user=postgres connect_timeout=5", autocommit=True)

    def end(self, how):
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            # One that it had begun a moment ago would keep the next one from starting.
            self.process.wait()
            while left := self.processes():
                for one in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, how)
                time.sleep(0.01)
        self.process.wait()

    def processes(self):
        """The processes that run in its folder."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "cwd") == f"{self.folder}/data":
                    found.append(int(process.name))
        return found

    def remove(self):
        if self.process:
            self.end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def parent(folder):
    try:
        return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return None


class Headwater:
    """The program, with the joins."""

    CONFIG = """
[[source]]
name = "db"
kind = "postgres"
url = "postgres://postgres@/postgres?host=FOLDER"

[[table]]
name = "s"
boundary = 1
source = "db"
table = "subs"
key = ["who", "poster"]
value = "EMPTY"

[[table]]
name = "p"
boundary = 1
source = "db"
table = "posts"
key = ["poster", "time"]
value = "tweet"

[[join]]
name = "timeline"
spec = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"

[[join]]
name = "posts"
spec = "posts|<poster> = count p|<poster>|<time>"
"""

    bounded = True

    def __init__(self, postgres, shards=1):
        self.evicted, self.shards = 0, shards
        self.config = f"{postgres.folder}/headwater.toml"
        pathlib.Path(self.config).write_text(self.CONFIG.replace("FOLDER", postgres.folder))
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--config", self.config, "--port", "0", "--shards", str(self.shards)], stdout=subprocess.PIPE, text=True
        )
        ready = next(line for line in self.process.stdout if " ready on " in line)
        self.port = int(ready.rsplit(":", 1)[1])
        if self.bounded:
            self.connect().config_set("maxmemory", BOUND + (self.shards - 1) * BOUND_SHARD)

    def connect(self):
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=30)

    def end(self, how):
        with contextlib.suppress(redis.RedisError):
            self.evicted += self.connect().info("stats")["evicted_loaded_ranges"]
        self.process.send_signal(how)
        self.process.wait()


def tweet_of(version):
    """A text that says which version it is, and is as long as may be."""
    return f"v{version} " + f"{version:08}" * (POST_BYTES // 16 + version * 7919 % (POST_BYTES // 8))


def version_of(tweet):
    """Which version it is; less than any for a text that nobody wrote."""
    number = tweet[1:].split(" ", 1)[0]
    return int(number) if number.isdigit() and tweet == tweet_of(int(number)) else -1


def poster_for(choose, user):
    """Someone whom `user` may follow: few, so that no timeline is much of all there is."""
    return POSTERS[(USERS.index(user) * 7 + choose.randrange(3)) % len(POSTERS)]


def pairs(answer):
    return dict(answer if isinstance(answer, dict) else zip(answer[::2], answer[1::2]))


def is_refusal(error):
    """Whether something is not there for the moment: the database, or the owner of a shard."""
    return "SOURCE" in str(error) or isinstance(error, redis.exceptions.ClusterDownError)


class History:
    """What threads share."""

    def __init__(self, postgres, seed, start):
        self.postgres = postgres
        self.random = random.Random(seed)
        # A table is declared when it is there.
        self.fill()
        self.headwater = start()
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.version = 0
        self.wrong = []
        # Disturbances that come before any comes again.
        self.left = []
        self.is_by_triggers = postgres.wal_level != "logical"
        self.counts = {"written": 0, "read": 0, "refused": 0, "awaited": 0, "altered": 0, "changed": 0, "failed over": 0}

    def fill(self):
        with self.postgres.connect() as database:
            database.execute("CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time))")
            database.execute("CREATE TABLE subs (who text, poster text, PRIMARY KEY (who, poster))")
            with database.cursor() as cursor:
                rows = [(poster, at, tweet_of(0)) for poster in POSTERS for at in range(POSTS)]
                cursor.executemany("INSERT INTO posts VALUES (%s, %s, %s)", rows)
                cursor.executemany("INSERT INTO subs VALUES (%s, %s)", [(user, poster_for(self.random, user)) for user in USERS])

    def next(self):
        with self.lock:
            self.version += 1
            return self.version

    def count(self, what, by=1):
        with self.lock:
            self.counts[what] += by

    def writer(self, number, seed):
        choose = random.Random(seed)
        database = cache = None
        while not self.done.is_set():
            try:
                database = database or self.postgres.connect()
                # Each writer has times of its own, so versions of a key grow in the order of commits.
                poster, at = choose.choice(POSTERS), choose.randrange(POSTS // 3) * 3 + number
                with database.transaction():
                    # What alters the table writes a version of its own, which those of later commits are above.
                    database.execute("LOCK TABLE posts IN ROW EXCLUSIVE MODE")
                    version = self.next()
                    changed = sum(self.step(database, choose, number) for _ in range(choose.randrange(1, 4)))
                    database.execute(
                        "INSERT INTO posts VALUES (%s, %s, %s) ON CONFLICT (poster, time) DO UPDATE SET tweet = EXCLUDED.tweet",
                        (poster, at, tweet_of(version)),
                    )
                self.count("written")
                self.count("changed", changed + 1)
                if choose.randrange(5) == 0:
                    position = str(database.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0])
                    cache = cache or self.headwater.connect()
                    key = f"p|{poster}|{at:010}"
                    got = cache.execute_command("RANGE", key, key + "\0", "VALUES", "AT", position)
                    if len(got) != 1 or version_of(got[0]) < version:
                        self.wrong.append(f"{key} at {position}: {got}, not v{version}")
                    self.count("awaited")
            except psycopg.Error:
                database = None
                time.sleep(0.02)
            except redis.ResponseError as error:
                if not is_refusal(error):
                    self.wrong.append(str(error))
                self.count("refused")
            except (redis.ConnectionError, redis.TimeoutError):
                cache = None
                time.sleep(0.02)
            time.sleep(choose.random() * 0.004)

    def step(self, database, choose, number):
        """Changes a row, or none; how many."""
        poster, at = choose.choice(POSTERS), choose.randrange(POSTS // 3) * 3 + number
        user = USERS[choose.randrange(len(USERS) // 3) * 3 + number]
        match choose.randrange(4):
            case 0:
                done = database.execute("DELETE FROM posts WHERE poster = %s AND time = %s", (poster, at))
            case 1:
                done = database.execute("INSERT INTO subs VALUES (%s, %s) ON CONFLICT DO NOTHING", (user, poster_for(choose, user)))
            case 2:
                done = database.execute("DELETE FROM subs WHERE who = %s AND poster = %s", (user, poster_for(choose, user)))
            case _:
                tweet = tweet_of(self.next())
                done = database.execute("UPDATE posts SET tweet = %s WHERE poster = %s AND time = %s", (tweet, poster, at))
        return done.rowcount

    def reader(self, seed):
        choose = random.Random(seed)
        cache, seen = None, {}
        while not self.done.is_set():
            try:
                cache = cache or self.headwater.connect()
                if choose.randrange(3):
                    found = pairs(cache.execute_command("PREFIX", f"t|{choose.choice(USERS)}|"))
                else:
                    found = pairs(cache.execute_command("PREFIX", f"p|{choose.choice(POSTERS)}|"))
                cache.get(f"posts|{choose.choice(POSTERS)}")
                for key, value in found.items():
                    version = version_of(value)
                    if version < seen.get(key, 0):
                        self.wrong.append(f"{key} went back from {seen[key]} to {version}")
                    seen[key] = version
                self.count("read")
            except redis.ResponseError as error:
                if not is_refusal(error):
                    self.wrong.append(str(error))
                self.count("refused")
                time.sleep(0.01)
            except (redis.ConnectionError, redis.TimeoutError):
                cache = None
                time.sleep(0.02)
            time.sleep(choose.random() * 0.003)

    def disturb(self):
        if not self.left:
            self.left = self.random.sample(range(9), 9)
        match self.left.pop():
            case 0:
                self.postgres.end(signal.SIGINT)
                self.postgres.start()
            case 1:
                self.postgres.end(signal.SIGKILL)
                self.postgres.start()
            case 2:
                self.headwater.end(signal.SIGTERM)
                self.headwater.start()
            case 3:
                self.headwater.end(signal.SIGKILL)
                self.headwater.start()
            case 4:
                self.migrate()
            case 8:
                self.fail_over()
            case 5:
                # Whom they follow next is for the writers to say.
                self.alter("CREATE TABLE kept AS SELECT * FROM subs", "TRUNCATE subs", "INSERT INTO subs SELECT * FROM kept", "DROP TABLE kept")
            case _:
                with self.postgres.connect() as database:
                    database.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headwater' AND random() < 0.6"
                    )

    def fail_over(self):
        """A standby that lacks nothing takes over at the same address: from there on history is another one."""
        self.postgres.end(signal.SIGINT)
        (pathlib.Path(self.postgres.folder) / "data" / "standby.signal").touch()
        self.postgres.start()
        with self.postgres.connect() as database:
            database.execute("SELECT pg_promote()")
        self.count("failed over")

    def migrate(self):
        """Alters the table of posts in one transaction, in one of the ways that change what its rows hold or what the log tells of them."""
        match self.random.randrange(4):
            case 0:
                self.alter(
                    "ALTER TABLE posts ADD other text",
                    "UPDATE posts SET other = tweet",
                    "ALTER TABLE posts DROP tweet",
                    "ALTER TABLE posts RENAME other TO tweet",
                )
            case 1:
                # Every row has a value that no row is written for.
                default = lambda: f"ALTER TABLE posts DROP tweet, ADD tweet text DEFAULT '{tweet_of(self.next())}'"
                self.alter("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE", default, "ALTER TABLE posts ALTER tweet DROP DEFAULT")
            case 2:
                self.alter("ALTER TABLE posts ALTER tweet TYPE varchar", "ALTER TABLE posts ALTER tweet TYPE text")
            case _:
                # The log does not tell of what is written meanwhile.
                update = lambda: f"UPDATE posts SET tweet = '{tweet_of(self.next())}' WHERE time < 2"
                out, back = ([] if self.is_by_triggers else [f"ALTER PUBLICATION headwater_db {how} TABLE posts"] for how in ("DROP", "ADD"))
                self.alter("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE", *out, update, *back)

    def alter(self, *statements):
        # Writers may be in the way, each other's and this one's.
        with contextlib.suppress(psycopg.Error), self.postgres.connect() as database, database.transaction():
            for statement in statements:
                database.execute(statement() if callable(statement) else statement)
            self.count("altered")

    def run(self):
        numbers = [(self.writer, (number, self.random.random())) for number in range(3)]
        numbers += [(self.reader, (self.random.random(),)) for _ in range(2)]
        threads = [threading.Thread(target=target, args=words) for target, words in numbers]
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS
        drawn = 0
        # Each kind of disturbance comes once at least.
        while (time.monotonic() < end or self.counts["changed"] < CHANGES or drawn < 9) and not self.wrong:
            drawn += 1
            time.sleep(self.random.uniform(0.1, 1.5))
            self.disturb()
        self.done.set()
        for thread in threads:
            thread.join()
        assert not self.wrong, self.wrong[:5]

    def compare(self):
        cache = self.headwater.connect()
        database = self.postgres.connect()
        end = time.monotonic() + 60
        while True:
            try:
                position = cache.execute_command("SOURCE.POSITION", "db")
                for user in USERS:
                    got = pairs(cache.execute_command("PREFIX", f"t|{user}|", "AT", position))
                    rows = database.execute(
                        "SELECT who, time, poster, tweet FROM subs JOIN posts USING (poster) WHERE who = %s", (user,)
                    )
                    assert got == {f"t|{who}|{at:010}|{poster}": tweet for who, at, poster, tweet in rows}
                counts = database.execute("SELECT poster, count(*) FROM posts GROUP BY poster").fetchall()
                for poster in POSTERS:
                    assert cache.get(f"posts|{poster}") == (str(dict(counts).get(poster)) if poster in dict(counts) else None)
                return
            except redis.ResponseError as error:
                # It may still be connecting.
                assert is_refusal(error) and time.monotonic() < end, error
                time.sleep(0.1)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("wal_level", ["logical", "replica"])
def test_joins_equal_the_same_joins_in_sql(wal_level, shards):
    postgres = Postgres(wal_level)
    try:
        history = History(postgres, SEED, lambda: Headwater(postgres, shards))
        headwater = history.headwater
        try:
            history.run()
            history.compare()
        finally:
            headwater.end(signal.SIGKILL)
        print(history.counts, f"evicted: {headwater.evicted}")
        assert min(history.counts["written"], history.counts["read"]) > 50
        assert history.counts["awaited"] > 5
        assert min(history.counts["altered"], history.counts["failed over"]) > 0
        assert headwater.evicted > 10
    finally:
        postgres.remove()
