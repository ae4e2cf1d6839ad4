//! Engines of another machine: the workspace is brought there, what changed comes back, and nothing stays.
//! That other machine is this one, reached by what leads to others: an address, or `ssh`.

#![allow(clippy::unwrap_used)]
#![allow(
    clippy::print_stdout,
    reason = "what is skipped is read by scripts/test and people"
)]

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::engine::{self, Engine, SINGLE, TOOLS};
use crate::support::{self, Call, Fixture, Sandboxed};

/// BOUND: what is waited for comes at once; on a machine that is drowning, within a minute.
const WITHIN: Duration = Duration::from_secs(60);

struct Scene<'a> {
    env: &'a Sandboxed,
    fixture: &'a Fixture,
    engine: &'a Engine,
    found_by: Vec<(String, String)>,
}

impl Scene<'_> {
    fn call(&self) -> Call<'_> {
        let call = self.env.call(self.fixture);
        let named = self.found_by.iter();
        named.fold(call, |call, (name, value)| call.variable(name, value))
    }

    /// `ringfence run --json` there.
    fn run(&self, options: &[&str], shell: &str) -> Result<Value> {
        let there = ["--backend", "docker", "--image", TOOLS];
        self.call().run(&[&there, options].concat(), shell)
    }

    /// It must fail with this code and these words.
    fn refused(&self, words: &[&str], code: i32, said: &str) -> Result<()> {
        let output = self.call().finish(words)?;
        let fits = output.status.code() == Some(code) && output.stderr.contains(said);
        ensure!(fits, "{words:?}: {}", output.tail());
        Ok(())
    }

    fn nothing_left(&self) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        loop {
            let volumes = self.engine.docker(&["volume", "ls", "--quiet"])?;
            let left = self.engine.ours()?;
            let places = fs::read_dir(self.fixture.state.join("attached"))?;
            let places = places.filter_map(|entry| Some(entry.ok()?.file_name()));
            let places: Vec<_> = places
                .filter(|name| !name.to_string_lossy().starts_with('.'))
                .collect();
            if volumes.is_empty() && left.is_empty() && places.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "left: {volumes} {left:?} {places:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn with_one(name: &str, test: impl Fn(&Scene<'_>) -> Result<()>) {
    with(Engine::shared(), name, test);
}

fn with(engine: Result<Engine>, name: &str, test: impl Fn(&Scene<'_>) -> Result<()>) {
    engine::with_each_user(engine, name, |env, fixture, engine| {
        let scene = Scene {
            env,
            fixture,
            engine,
            found_by: engine.elsewhere()?,
        };
        test(&scene)?;
        scene.nothing_left()
    });
}

/// Whatever an agent can make of a tree.
const ODD: &str = r#"
printf 'one\ntwo\n' > a.txt
mkdir -p deep/er && echo x > deep/er/x && ln deep/er/x deep/linked && ln -s ../a.txt deep/way
mv src moved && mkdir src && echo new > src/new
rm README.md && mkdir README.md && echo in > README.md/in
echo m > .wh.marked && printf 'n' > "$(printf 'new\nline')" && printf 'b\000c' > binary
echo t > tool && chmod 755 tool
mkdir held && echo h > held/h && chmod 400 held/h && chmod 500 held
mkfifo pipe && rm -f .gitignore && mkfifo .gitignore
for mode in 000 300 600; do mkdir m$mode && echo s > m$mode/s && chmod $mode m$mode; done
i=0; while [ $i -lt 300 ]; do mkdir dddddddddddddddddddd && cd dddddddddddddddddddd; i=$((i + 1)); done; echo deep > f; cd /workspace
truncate -s 900M holes
ln -s /etc/passwd out
chmod 755 u555 && echo n > u555/n && rm u555/o
chmod 755 u500 && echo n > u500/n && chmod 300 u500
git log --oneline | wc -l
"#;

/// The same patch as without an engine, by an address and by `ssh`.
#[test]
fn what_an_agent_leaves_elsewhere_comes_back_as_it_is() {
    with_one("odd", |scene| {
        // Directories that the user closed, which the agent opens.
        let folder = &scene.fixture.folder;
        let made =
            "for mode in 555 500; do mkdir u$mode && echo o > u$mode/o && chmod $mode u$mode; done";
        scene
            .env
            .as_owner(scene.fixture, folder, &["sh", "-c", made])?;
        let here = scene.env.call(scene.fixture);
        let own = here.run(&["--backend", "native"], ODD)?;
        let by_ssh = scene.run(&[], ODD)?;
        let (port, stop) = forwarded(scene.engine)?;
        let by_address = Scene {
            env: scene.env,
            fixture: scene.fixture,
            engine: scene.engine,
            found_by: vec![("DOCKER_HOST".to_owned(), format!("tcp://127.0.0.1:{port}"))],
        };
        let by_address = by_address.run(&[], ODD)?;
        stop();
        for there in [&by_ssh, &by_address] {
            for field in ["status", "changed_files", "patch_sha256", "exit_code"] {
                ensure!(
                    own[field] == there[field],
                    "{field}: {} and {}",
                    own[field],
                    there[field]
                );
            }
            ensure!(there["evidence"]["complete"] == true, "{there}");
            ensure!(support::said(&own) == support::said(there), "{there}");
        }
        let open = ["chmod", "755", "u555", "u500"];
        scene.env.as_owner(scene.fixture, folder, &open)?;
        Ok(())
    });
}

/// Each round sees what there is after it, also what an earlier one did and the next undid.
#[test]
fn checks_see_the_tree_of_each_round() {
    with_one("rounds", |scene| {
        let shell = "if [ -e other/new ]; then mv other src; rm src/new; echo good > a.txt; \
                     else mv src other; echo x > other/new; echo bad > a.txt; fi";
        let check = "grep -q good a.txt && test -d src && test ! -e other && test ! -e src/new";
        let options = ["--iterations", "3", "--check", check];
        let result = scene.run(&options, shell)?;
        let rounds = &result["rounds"];
        ensure!(rounds["outcome"] == "passed", "{rounds:#}");
        let count = rounds["iterations"].as_array().map_or(0, Vec::len);
        ensure!(count == 2, "{rounds:#}");
        ensure!(
            result["changed_files"] == serde_json::json!(["a.txt"]),
            "{result}"
        );
        Ok(())
    });
}

#[test]
fn what_cannot_be_elsewhere_is_refused_and_told() {
    with_one("refused", |scene| {
        let there = ["--backend", "docker", "--image", TOOLS];
        let policy = scene.fixture.folder.with_file_name("policy.toml");
        fs::write(&policy, "[network]\nallow = [\"example.org\"]\n")?;
        let policy = policy.to_string_lossy().into_owned();
        let words = [&["run"], &there[..], &["--", "true"]].concat();
        let host = ["run", "--backend", "docker", "--", "true"];
        scene.refused(&host, 3, "with `--image` it can")?;
        let network = [&words[..5], &["--policy", &policy, "--", "true"]].concat();
        scene.refused(&network, 3, "a network")?;
        let lasting = [&["sandbox", "create"], &there[..]].concat();
        let output = scene.call().finish(&lasting)?;
        let id = output.stdout.trim().to_owned();
        ensure!(output.status.success(), "{}", output.tail());
        scene.refused(&["sandbox", "exec", &id, "--", "true"], 3, "lasts")?;
        let removed = scene.call().finish(&["sandbox", "rm", &id])?;
        ensure!(removed.status.success(), "{}", removed.tail());
        for (at, said) in [
            (
                "ssh://-oProxyCommand=touch${IFS}x",
                "cannot be reached by us",
            ),
            ("tcp://127.0.0.1:1", "no Docker engine answers"),
            ("tcp://127.0.0.1", "cannot be reached by us"),
        ] {
            let call = scene.env.call(scene.fixture).variable("DOCKER_HOST", at);
            let output = call.finish(&words)?;
            let fits = output.status.code() == Some(4) && output.stderr.contains(said);
            ensure!(fits, "{at}: {}", output.tail());
        }
        let call = scene.env.call(scene.fixture);
        let call = call
            .variable("DOCKER_HOST", "tcp://127.0.0.1:1")
            .variable("DOCKER_TLS_VERIFY", "1");
        let output = call.finish(&words)?;
        ensure!(
            output.stderr.contains("cannot be reached by us"),
            "{}",
            output.tail()
        );
        Ok(())
    });
}

/// What is in a folder may be changed by its owner meanwhile: that is told, as it is without an engine.
#[test]
fn a_folder_that_moves_meanwhile_is_told() {
    with_one("moves", |scene| {
        let there = ["--backend", "docker", "--image", TOOLS];
        let here = ["--backend", "native"];
        let folder = &scene.fixture.folder;
        let shell = "echo made > made; echo READY; read -r line";
        let mut results = Vec::new();
        for words in [&here[..], &there] {
            let kept = [
                fs::read(folder.join("README.md"))?,
                fs::read(folder.join("a.txt"))?,
            ];
            let mut live = scene.call().run_live(words, shell)?;
            live.until("READY")?;
            fs::remove_file(folder.join("README.md"))?;
            fs::write(folder.join("a.txt"), "the owner's")?;
            live.say("\n")?;
            results.push(live.finish()?.json.context("no result")?);
            fs::write(folder.join("README.md"), &kept[0])?;
            fs::write(folder.join("a.txt"), &kept[1])?;
        }
        ensure!(results[0]["status"] == "base_moved", "{}", results[0]);
        for field in [
            "status",
            "outcome",
            "changed_files",
            "omitted",
            "patch_sha256",
        ] {
            let (own, other) = (&results[0][field], &results[1][field]);
            ensure!(own == other, "{field}: {own} and {other}");
        }
        Ok(())
    });
}

/// A stop while the work comes back ends nothing before it is here.
#[test]
fn a_stop_waits_for_the_work() {
    with_one("stopped", |scene| {
        let shell = "head -c 20000000 /dev/urandom > big; echo work > precious; echo READY";
        for milliseconds in [0, 200, 600] {
            let words = ["--backend", "docker", "--image", TOOLS];
            let mut live = scene.call().run_live(&words, shell)?;
            live.until("READY")?;
            std::thread::sleep(Duration::from_millis(milliseconds));
            live.signal(Signal::TERM)?;
            // It may have no result to tell: what is in the layer is what counts.
            let told = live.finish()?.json.unwrap_or_default();
            let layers = support::fingerprint(&scene.fixture.state.join("workspaces"))?;
            let is_here = told["changed_files"].to_string().contains("precious")
                || layers.keys().any(|path| path.ends_with("precious"));
            ensure!(is_here, "{milliseconds} ms: the work is lost: {told}");
        }
        scene.call().finish(&["gc"])?;
        Ok(())
    });
}

/// What is required is tried there, with the image; what a failing errand met is told.
#[test]
fn what_is_required_is_tried_there() {
    with_one("required", |scene| {
        let result = scene.run(&["--require", "observation=verified"], "true")?;
        ensure!(result["status"] == "done", "{result}");
        let there = ["run", "--backend", "docker", "--image", TOOLS];
        let words = [&there[..], &["--require", "kernel=separate", "--", "true"]].concat();
        scene.refused(&words, 3, "kernel=separate")?;
        let deep = "python3 -c \"import os\nfor _ in range(4100): os.mkdir('d'); os.chdir('d')\"";
        let words = [&there[..], &["--", "sh", "-c", deep]].concat();
        let output = scene.call().finish(&words)?;
        ensure!(
            output.stderr.contains("it is too deep"),
            "{}",
            output.tail()
        );
        scene.call().finish(&["gc"])?;
        Ok(())
    });
}

/// What an engine has no room for is told, and its work that has room comes back.
#[test]
fn a_full_disk_there_is_told() {
    with(Engine::on_own_disk(), "full", |scene| {
        let words = ["run", "--backend", "docker", "--image", TOOLS, "--", "true"];
        scene.engine.leave_room(20 << 20)?;
        let shell = "echo work > kept; head -c 60000000 /dev/zero > big || rm big; ls > names";
        let result = scene.run(&[], shell)?;
        let changed = result["changed_files"].to_string();
        let is_right = changed.contains("kept") && !changed.contains("big");
        ensure!(is_right, "{result}");
        let large = scene.fixture.folder.join("large");
        fs::write(&large, vec![7; 40 << 20])?;
        scene.refused(&words, 4, "No space left on device")?;
        fs::remove_file(&large)?;
        scene.engine.leave_room(0)?;
        scene.refused(&words, 4, "the engine's disk is full")?;
        // With room again it goes on.
        scene.engine.leave_room(40 << 20)?;
        let result = scene.run(&[], "echo more > more")?;
        ensure!(result["status"] == "done", "{result}");
        Ok(())
    });
}

/// An image for another kind of machine is refused before anything is made of it.
#[test]
fn an_image_for_another_machine_is_refused() {
    with_one("foreign", |scene| {
        let name = "conformance-other:1";
        if scene.engine.docker(&["image", "inspect", name]).is_err() {
            scene.engine.for_another_machine(SINGLE, name)?;
        }
        let words = [
            "run",
            "--backend",
            "docker",
            "--image",
            name,
            "--",
            "/single",
        ];
        let said = format!("the image `{name}` is for s390x");
        scene.refused(&words, 2, &said)?;
        let output = scene
            .env
            .call(scene.fixture)
            .variable(scene.engine.variable(), &scene.engine.address())
            .finish(&words)?;
        ensure!(output.stderr.contains(&said), "{}", output.tail());
        Ok(())
    });
}

/// Whenever a driver is killed, what it leaves there is found again and goes.
#[test]
fn a_killed_driver_leaves_nothing_elsewhere() {
    with_one("killed", |scene| {
        for wait in [None, Some("-errand"), Some("-work")] {
            let words = [
                "run",
                "--backend",
                "docker",
                "--image",
                TOOLS,
                "--",
                "sleep",
                "300",
            ];
            let live = scene.call().live(&words)?;
            let deadline = Instant::now() + WITHIN;
            loop {
                let volumes = scene.engine.docker(&["volume", "ls", "--quiet"])?;
                let names =
                    scene
                        .engine
                        .docker(&["ps", "--all", "--format", "{{.Names}} {{.State}}"])?;
                let reached = match wait {
                    None => names
                        .lines()
                        .any(|line| line.ends_with(" running") && !line.contains("-errand")),
                    Some("-work") => volumes.contains("-work"),
                    Some(part) => names.contains(part),
                };
                if reached {
                    break;
                }
                ensure!(Instant::now() < deadline, "{wait:?} was not reached");
                std::thread::sleep(Duration::from_millis(2));
            }
            live.signal(Signal::KILL)?;
            drop(live);
            // Whoever asks another engine, or none, forgets nothing of what is at this one.
            let call = scene.env.call(scene.fixture);
            let output = call.finish(&["run", "--backend", "native", "--", "true"])?;
            ensure!(output.status.success(), "{}", output.tail());
            let call = scene.env.call(scene.fixture);
            call.variable("DOCKER_HOST", "tcp://127.0.0.1:1")
                .finish(&["gc"])?;
            let call = scene.env.call(scene.fixture);
            let path = scene.found_by.iter().find(|(name, _)| name == "PATH");
            let path = &path.context("a way to `ssh`")?.1;
            let output = call.variable("PATH", path).finish(&["gc"])?;
            ensure!(output.status.success(), "{}", output.tail());
            scene
                .nothing_left()
                .with_context(|| format!("killed at {wait:?}"))?;
        }
        Ok(())
    });
}

/// A port of this machine that leads to the engine, until it is told to stop.
fn forwarded(engine: &Engine) -> Result<(u16, impl FnOnce())> {
    let socket = engine.address();
    let socket = socket.trim_start_matches("unix://").to_owned();
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || -> io::Result<()> {
        for stream in listener.incoming() {
            let (mut near, mut far) = (stream?, UnixStream::connect(&socket)?);
            let mut first = [0];
            if near.peek(&mut first)? == 1 && first == *b"!" {
                break;
            }
            let (mut near_end, mut far_end) = (near.try_clone()?, far.try_clone()?);
            std::thread::spawn(move || {
                let _ = io::copy(&mut near_end, &mut far_end);
                far_end.shutdown(Shutdown::Write)
            });
            std::thread::spawn(move || {
                let _ = io::copy(&mut far, &mut near);
                near.shutdown(Shutdown::Both)
            });
        }
        Ok(())
    });
    Ok((port, move || {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let _ = stream.write_all(b"!");
            let _ = stream.read(&mut [0]);
        }
    }))
}
