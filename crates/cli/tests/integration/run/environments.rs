//! Setups and caches: made once, shared by who may share them, and never in a patch.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, expect, in_each_mode, said};

/// Makes a word that no other run of it makes.
const WORD: &str = "cat /proc/sys/kernel/random/uuid";

fn propose(env: &Sandboxed, fixture: &Fixture, setup: &str, rest: &str) -> Result<()> {
    let text = format!("[environment]\nsetup = '''{setup}'''\n{rest}\n");
    env.put(fixture, "ringfence.toml", text)?;
    Ok(())
}

fn keys(env: &Sandboxed, fixture: &Fixture) -> Result<Vec<String>> {
    let text = env.look(fixture, &["environment", "list", "--json"])?;
    let keys = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line)?;
        Ok(line["key"].as_str().context("a key")?.to_owned())
    });
    keys.collect()
}

fn names(directory: PathBuf) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// What is left behind, as `path why`.
fn omitted(result: &Value) -> Vec<String> {
    let list = result["omitted"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.map(|one| format!("{} {}", text(&one["path"]), text(&one["why"])))
        .collect()
}

#[test]
fn a_setup_runs_once_for_each_key_and_never_crosses_back() -> Result<()> {
    in_each_mode("setup-once", |env, fixture| {
        env.put(fixture, "lock", "1")?;
        let setup = format!(
            "mkdir -p deps/x; {WORD} > deps/x/made; echo changed >> a.txt; rm -f lock; \
             echo mine > ~/.tool; mkfifo pipe; mkdir .git/x"
        );
        propose(env, fixture, &setup, "key = ['lock']")?;
        let look = "cat deps/x/made ~/.tool a.txt lock";
        let first = env.run_with(fixture, &[], look)?;
        let second = env.run_with(fixture, &[], look)?;
        expect(&second, "status", "done")?;
        ensure!(said(&first) == said(&second), "{first} is not {second}");
        ensure!(!said(&first).contains("changed"), "{first}");
        let notes = first["notes"].to_string();
        ensure!(notes.contains("2 of the folder's own paths"), "{notes}");
        let facts = &second["environment"];
        ensure!(
            facts["setup_key"] == keys(env, fixture)?[0].as_str(),
            "{facts}"
        );
        // What an agent does with it stays behind, with a reason of its own.
        let shell = "echo x > deps/x/made; echo y > deps/new; echo z > own; rm ~/.tool";
        let third = env.run_with(fixture, &["--include-ignored"], shell)?;
        expect(&third, "changed_files", vec!["own"])?;
        ensure!(omitted(&third) == ["deps environment"], "{third}");
        let fourth = env.run_with(fixture, &[], "rm -r deps; mkdir deps; echo q > deps/q")?;
        expect(&fourth, "changed_files", Vec::<String>::new())?;
        ensure!(omitted(&fourth) == ["deps environment"], "{fourth}");
        // Nobody else has seen any of it.
        let fifth = env.run_with(fixture, &[], look)?;
        ensure!(said(&fifth) == said(&first), "{fifth}");
        env.put(fixture, "lock", "2")?;
        let other = env.run_with(fixture, &[], look)?;
        ensure!(said(&other) != said(&first), "{other}");
        ensure!(keys(env, fixture)?.len() == 2, "one for each key");
        ensure!(
            !fixture.folder.join("deps").exists(),
            "the folder is written"
        );
        Ok(())
    })
}

#[test]
fn a_file_of_the_folder_counts_more_than_what_a_setup_made() -> Result<()> {
    in_each_mode("setup-below", |env, fixture| {
        propose(
            env,
            fixture,
            "mkdir gen; echo made > gen/one; echo made > gen/two",
            "",
        )?;
        env.run_with(fixture, &[], "true")?;
        fs::create_dir(fixture.folder.join("gen"))?;
        env.put(fixture, "gen/one", "own\n")?;
        let result = env.run_with(
            fixture,
            &[],
            "cat gen/one gen/two; echo x >> gen/one; echo y > gen/two",
        )?;
        ensure!(said(&result) == "own\nmade\n", "{result}");
        expect(&result, "changed_files", vec!["gen/one"])?;
        ensure!(omitted(&result) == ["gen/two environment"], "{result}");
        Ok(())
    })
}

/// Runs a setup that must fail: it says why, and nothing of it is kept.
fn fails(env: &Sandboxed, fixture: &Fixture, options: &[&str], says: &[&str]) -> Result<()> {
    let words = [&["run"], options, &["--", "true"]].concat();
    let output = env.call(fixture).finish(&words)?;
    output.exits(4)?;
    for says in says {
        ensure!(
            output.stderr.contains(says),
            "no `{says}` in {}",
            output.tail()
        );
    }
    ensure!(keys(env, fixture)?.is_empty(), "it is listed");
    ensure!(
        names(fixture.state.join("workspaces"))?.is_empty(),
        "a layer is left"
    );
    let left = names(fixture.state.join("environments"))?;
    let kinds: Vec<_> = left
        .iter()
        .filter_map(|name| name.split_once('.'))
        .collect();
    ensure!(
        left.len() == 2 && kinds[0].1 == "failed" && kinds[1].1 == "lock",
        "{left:?}"
    );
    let log = fixture.state.join("environments").join(&left[0]);
    ensure!(
        names(log)? == ["audit.jsonl", "stderr", "stdout"],
        "more than its output"
    );
    Ok(())
}

#[test]
fn a_setup_that_fails_shows_its_output_and_leaves_nothing() -> Result<()> {
    in_each_mode("setup-fails", |env, fixture| {
        propose(
            env,
            fixture,
            r"echo half > made; printf 'why\033[2J it\n' >&2; false; echo on",
            "",
        )?;
        fails(
            env,
            fixture,
            &[],
            &["the setup exited with 1", "why\\u{1b}[2J it", "hint:"],
        )?;
        // The next one starts anew, and one that succeeds takes the place of what is left.
        propose(env, fixture, "test ! -e made; echo fine > other", "")?;
        let result = env.run_with(fixture, &[], "cat other")?;
        ensure!(said(&result) == "fine\n", "{result}");
        env.look(fixture, &["gc"])?;
        let left = names(fixture.state.join("environments"))?;
        ensure!(
            !left.iter().any(|name| name.ends_with(".failed")),
            "{left:?}"
        );
        ensure!(keys(env, fixture)?.len() == 1, "gc took what is whole");
        Ok(())
    })
}

#[test]
fn a_setup_is_held_to_the_bounds() -> Result<()> {
    in_each_mode("setup-bounds", |env, fixture| {
        propose(env, fixture, "echo waits; sleep 1000", "")?;
        fails(env, fixture, &["--timeout", "2s"], &["time limit", "waits"])?;
        env.look(fixture, &["gc"])?;
        let fill = "for n in 1 2 3 4 5 6 7 8; do dd if=/dev/zero bs=1M count=64 of=FILE$n; sync; sleep 1; done 2>/dev/null";
        for place in ["", "$HOME/"] {
            fs::remove_dir_all(fixture.state.join("environments"))?;
            propose(
                env,
                fixture,
                &fill.replace("FILE", &format!("{place}big")),
                "",
            )?;
            fails(env, fixture, &["--disk", "16M"], &["disk limit"])?;
        }
        Ok(())
    })
}

#[test]
fn a_key_file_that_is_missing_or_a_link_is_told() -> Result<()> {
    in_each_mode("setup-key", |env, fixture| {
        propose(env, fixture, "true", "key = ['no/such.lock']")?;
        let output = env.call(fixture).finish(&["run", "--", "true"])?;
        output.exits(2)?;
        ensure!(
            output
                .stderr
                .contains("`no/such.lock`, of which the setup's key is made"),
            "{}",
            output.tail()
        );
        std::os::unix::fs::symlink("/etc/shadow", fixture.folder.join("lock"))?;
        propose(env, fixture, "true", "key = ['lock']")?;
        let output = env.call(fixture).finish(&["run", "--", "true"])?;
        output.exits(2)?;
        ensure!(
            output.stderr.contains("cannot read `lock`"),
            "{}",
            output.tail()
        );
        Ok(())
    })
}

#[test]
fn of_two_runs_one_makes_and_the_other_waits() -> Result<()> {
    in_each_mode("setup-twice", |env, fixture| {
        propose(env, fixture, &format!("{WORD} > made"), "")?;
        let call = env.call(fixture);
        let runs = [
            call.run_live(&[], "cat made")?,
            call.run_live(&[], "cat made")?,
        ];
        let mut words = Vec::new();
        for run in runs {
            let output = run.finish()?;
            let result = output.json.clone().with_context(|| output.tail())?;
            words.push(said(&result).to_owned());
        }
        ensure!(words[0] == words[1] && words[0].len() == 37, "{words:?}");
        // While somebody has the lock, the next one says that it waits.
        let key = keys(env, fixture)?.remove(0);
        env.look(fixture, &["environment", "rm", &key[..12]])?;
        ensure!(keys(env, fixture)?.is_empty(), "it is still there");
        let lock = fs::File::create(fixture.state.join(format!("environments/{key}.lock")))?;
        std::os::unix::fs::chown(
            lock_path(fixture, &key),
            owner(fixture)?.0,
            owner(fixture)?.1,
        )?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let mut waiting = call.run_live(&[], "cat made")?;
        waiting.until("setup: another run is making it …")?;
        drop(lock);
        let output = waiting.finish()?;
        let result = output.json.clone().with_context(|| output.tail())?;
        expect(&result, "status", "done")?;
        ensure!(said(&result) != words[0], "it was removed before");
        Ok(())
    })
}

fn lock_path(fixture: &Fixture, key: &str) -> PathBuf {
    fixture.state.join(format!("environments/{key}.lock"))
}

fn owner(fixture: &Fixture) -> Result<(Option<u32>, Option<u32>)> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(&fixture.state)?;
    Ok((Some(metadata.uid()), Some(metadata.gid())))
}

/// A second folder with the same files, of the same owner.
fn twin(env: &Sandboxed, fixture: &Fixture) -> Result<PathBuf> {
    let twin = fixture.folder.with_file_name("twin");
    let (from, to) = (fixture.folder.to_string_lossy(), twin.to_string_lossy());
    env.as_owner(fixture, Path::new("/"), &["cp", "-a", &from, &to])?;
    Ok(twin)
}

#[test]
fn another_folder_with_the_same_inputs_has_its_own() -> Result<()> {
    in_each_mode("setup-apart", |env, fixture| {
        env.put(fixture, "lock", "1")?;
        let rest = "key = ['lock']\n[environment.cache]\npip = true";
        // The setup reads more than its key: what another folder has there must not count here.
        let setup = "cat seed > made; cat seed > $PIP_CACHE_DIR/kept";
        propose(env, fixture, setup, rest)?;
        env.put(fixture, "seed", "poison\n")?;
        let twin = twin(env, fixture)?;
        env.put(fixture, "seed", "good\n")?;
        let poisoned = env.call(fixture).folder(&twin).run(&[], "cat made")?;
        ensure!(said(&poisoned) == "poison\n", "{poisoned}");
        let look = "cat made $PIP_CACHE_DIR/kept";
        let own = env.run_with(fixture, &[], look)?;
        ensure!(said(&own) == "good\ngood\n", "{own}");
        // Another folder in the place of the first is another folder.
        fs::rename(&fixture.folder, fixture.folder.with_file_name("aside"))?;
        fs::rename(&twin, &fixture.folder)?;
        let swapped = env.run_with(fixture, &[], look)?;
        fs::rename(&fixture.folder, &twin)?;
        fs::rename(fixture.folder.with_file_name("aside"), &fixture.folder)?;
        ensure!(said(&swapped) == "poison\npoison\n", "{swapped}");
        ensure!(keys(env, fixture)?.len() == 3, "each has its own");
        Ok(())
    })
}

#[test]
fn what_a_policy_hides_is_hidden_from_a_setup() -> Result<()> {
    in_each_mode("setup-hide", |env, fixture| {
        env.put(fixture, ".env", "TOKEN=1\n")?;
        propose(
            env,
            fixture,
            "cat .env > copy 2>/dev/null || echo none > copy",
            "",
        )?;
        let open = env.run_with(fixture, &[], "cat copy")?;
        ensure!(said(&open) == "TOKEN=1\n", "{open}");
        let hidden = env.run_with(fixture, &["--hide", ".env"], "cat copy")?;
        ensure!(said(&hidden) == "none\n", "{hidden}");
        Ok(())
    })
}

#[test]
fn what_is_written_to_a_cache_is_seen_by_nobody_else() -> Result<()> {
    in_each_mode("cache-private", |env, fixture| {
        env.put(fixture, "lock", "1")?;
        let rest = "key = ['lock']\n[environment.cache]\npip = true\ngo = true";
        let setup = "ls $PIP_CACHE_DIR; echo $(cat lock) > $PIP_CACHE_DIR/from-setup-$(cat lock)";
        propose(env, fixture, setup, rest)?;
        let shell = "cat $PIP_CACHE_DIR/*; echo bad > $PIP_CACHE_DIR/from-setup-1; \
                     echo bad > $PIP_CACHE_DIR/from-agent; mkdir -p $GOCACHE; echo bad > $GOCACHE/x";
        let first = env.run_with(fixture, &[], shell)?;
        ensure!(said(&first) == "1\n", "{first}");
        let look = "cat $PIP_CACHE_DIR/*; ls $GOCACHE 2>/dev/null; true";
        let second = env.run_with(fixture, &[], look)?;
        ensure!(said(&second) == "1\n", "an agent's write is seen: {second}");
        // The next setup has what the one before left, and adds to it.
        env.put(fixture, "lock", "2")?;
        let third = env.run_with(fixture, &[], look)?;
        ensure!(said(&third) == "1\n2\n", "{third}");
        let facts = &third["environment"]["caches"];
        ensure!(
            facts[0]["kind"] == "pip" && facts[0]["generation"] == 2,
            "{facts}"
        );
        let generations = |fixture: &Fixture| -> Result<Vec<String>> {
            let place = fixture.state.join("caches/pip");
            let scope = names(place.clone())?.remove(0);
            names(place.join(scope))
        };
        ensure!(generations(fixture)? == ["1", "2"], "one for each setup");
        env.look(fixture, &["gc"])?;
        ensure!(generations(fixture)? == ["2"], "the old one is swept");
        // What they take is listed, and they go with the last environment of the folder.
        let used = |what: &str| -> Result<usize> {
            let rows: Vec<Value> = serde_json::from_str(&env.look(fixture, &["du", "--json"])?)?;
            let is_it = |row: &&Value| row["what"] == what && row["bytes"].as_u64() > Some(0);
            Ok(rows.iter().filter(is_it).count())
        };
        ensure!(
            used("environment")? == 2 && used("cache")? > 0,
            "not listed"
        );
        for key in keys(env, fixture)? {
            env.look(fixture, &["environment", "rm", &key])?;
        }
        env.look(fixture, &["gc"])?;
        ensure!(used("environment")? == 0 && used("cache")? == 0, "left");
        Ok(())
    })
}

#[test]
fn a_setup_reaches_what_the_user_allows_and_not_what_the_folder_asks() -> Result<()> {
    in_each_mode("setup-network", |env, fixture| {
        let asked = "network = ['a.example']\nroot = true";
        let setup = "cat /etc/resolv.conf > made; env | grep -c -i _proxy >> made || true";
        propose(env, fixture, setup, asked)?;
        let closed = env.run_with(fixture, &[], "cat made")?;
        ensure!(said(&closed) == "0\n", "{closed}");
        let notes = closed["notes"].to_string();
        for item in ["environment.network a.example", "environment.root"] {
            ensure!(notes.contains(item), "{notes}");
        }
        let given = env.run_with(
            fixture,
            &["--setup-network", "b.example"],
            "cat made; cat /etc/resolv.conf",
        )?;
        ensure!(said(&given).starts_with("nameserver "), "{given}");
        ensure!(
            said(&given).matches("nameserver").count() == 1,
            "the agent has it as well: {given}"
        );
        let output =
            env.call(fixture)
                .finish(&["run", "--setup-network", "b.example:x", "--", "true"])?;
        output.exits(2)
    })
}

#[test]
fn environments_are_listed_verified_and_removed() -> Result<()> {
    in_each_mode("setup-verify", |env, fixture| {
        propose(
            env,
            fixture,
            "mkdir d; echo same > d/same; ln -s same d/link; chmod 600 d/same",
            "",
        )?;
        env.run_with(fixture, &[], "true")?;
        let key = keys(env, fixture)?.remove(0);
        let shown = env.look(fixture, &["environment", "show", &key[..10]])?;
        ensure!(
            shown.contains(&key) && shown.contains("workspace sha256:"),
            "{shown}"
        );
        let output = env.call(fixture).finish(&["environment", "verify", &key])?;
        output.exits(0)?;
        ensure!(output.stdout.contains("equal\n"), "{}", output.tail());
        // What differs is listed, path by path.
        propose(
            env,
            fixture,
            &format!(
                "mkdir d; {WORD} > d/word; echo same > d/same; {WORD} > ~/word; touch made-$({WORD})"
            ),
            "",
        )?;
        env.run_with(fixture, &[], "true")?;
        let other = keys(env, fixture)?
            .into_iter()
            .find(|other| *other != key)
            .context("two")?;
        let output = env
            .call(fixture)
            .finish(&["environment", "verify", &other])?;
        output.exits(1)?;
        for line in [
            "workspace/d/word: other content",
            "home/word: other content",
            "only in what is kept",
        ] {
            ensure!(
                output.stdout.contains(line),
                "no `{line}`: {}",
                output.tail()
            );
        }
        ensure!(!output.stdout.contains("d/same"), "{}", output.tail());
        // The first one's folder says something else by now.
        let output = env.call(fixture).finish(&["environment", "verify", &key])?;
        output.exits(2)?;
        env.look(fixture, &["environment", "rm", &key, &other])?;
        let left = names(fixture.state.join("environments"))?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

#[test]
fn an_environment_in_use_is_not_removed() -> Result<()> {
    in_each_mode("setup-used", |env, fixture| {
        propose(env, fixture, "echo made > made", "")?;
        let mut run = env
            .call(fixture)
            .run_live(&[], "echo up >&2; read word; cat made")?;
        run.until("up")?;
        let key = keys(env, fixture)?.remove(0);
        let output = env.call(fixture).finish(&["environment", "rm", &key])?;
        output.exits(2)?;
        ensure!(output.stderr.contains("is in use"), "{}", output.tail());
        run.say("on\n")?;
        let output = run.finish()?;
        let result = output.json.clone().with_context(|| output.tail())?;
        ensure!(said(&result) == "made\n", "{result}");
        env.look(fixture, &["environment", "rm", &key])?;
        Ok(())
    })
}

#[test]
fn a_lasting_sandbox_and_its_forks_stand_on_a_setup() -> Result<()> {
    in_each_mode("setup-lasting", |env, fixture| {
        let rest = "[environment.cache]\npip = true\n[mounts]\n'/var/tmp/db' = { tmpfs = '1M' }";
        let setup =
            "mkdir deps; echo made > deps/one; echo tool > ~/.tool; echo c > $PIP_CACHE_DIR/c";
        propose(env, fixture, setup, rest)?;
        let folder = fixture.folder.to_string_lossy();
        let made = env
            .call(fixture)
            .finish(&["sandbox", "create", "--repo", &folder])?;
        made.exits(0)?;
        let id = made.stdout.trim().to_owned();
        let exec = |id: &str, shell: &str| -> Result<String> {
            let output = env
                .call(fixture)
                .finish(&["sandbox", "exec", id, "--", "sh", "-c", shell])?;
            output.exits(0)?;
            Ok(output.stdout)
        };
        let look =
            "cat deps/one ~/.tool $PIP_CACHE_DIR/c; df -P /var/tmp/db | tail -n 1 | grep -o tmpfs";
        let all = "made\ntool\nc\ntmpfs\n";
        let seen = exec(&id, look)?;
        ensure!(seen == all, "{seen}");
        exec(
            &id,
            "echo agent > deps/one; echo new > own; echo x > $PIP_CACHE_DIR/x",
        )?;
        let fork = env.call(fixture).finish(&["sandbox", "fork", &id])?;
        fork.exits(0)?;
        let fork = fork.stdout.trim().to_owned();
        let seen = exec(&fork, "cat deps/one own; ls $PIP_CACHE_DIR")?;
        ensure!(seen == "agent\nnew\nc\n", "{seen}");
        let diff = env.look(fixture, &["sandbox", "diff", &id])?;
        ensure!(diff.contains("b/own") && !diff.contains("deps"), "{diff}");
        let key = keys(env, fixture)?.remove(0);
        let output = env.call(fixture).finish(&["environment", "rm", &key])?;
        output.exits(2)?;
        for id in [id, fork] {
            env.call(fixture)
                .finish(&["sandbox", "rm", &id])?
                .exits(0)?;
        }
        env.look(fixture, &["environment", "rm", &key])?;
        Ok(())
    })
}
