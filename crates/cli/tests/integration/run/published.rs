//! `apply --pull-request` from end to end: the real program, a real git server over HTTP, a double
//! of each forge, good days and bad ones.

#[path = "../../../../engine/src/pull_request/tests/double.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "it is the engine's own, and each test program uses its own part"
)]
mod double;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::support::{Fixture, Output, Sandboxed, in_each_mode, is_root, run_quietly};
use double::{Day, Double, TOKEN};

/// The kinds of forges, as the double knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    GitHub,
    GitLab,
    Gitea,
}

const AUTHOR: &str = "Ada <ada@example.org>";
/// As it stands in the address of the remote, and as it is sent.
const PASSWORD: [&str; 2] = ["pass%20word-0815", "pass word-0815"];

/// A run that waits for a verdict, the server that its folder came from, and its forge.
struct Bench<'a> {
    env: &'a Sandboxed,
    fixture: &'a Fixture,
    forge: Double,
    server: Child,
    served: PathBuf,
    run: String,
}

impl<'a> Bench<'a> {
    fn new(env: &'a Sandboxed, fixture: &'a Fixture, kind: Kind) -> Result<Self> {
        let served = fixture.folder.with_file_name(format!("served-{kind:?}"));
        let bare = served.join("owner/app.git");
        let top = fixture.folder.with_file_name("");
        let to = bare.to_str().context("a plain path")?;
        env.git(
            fixture,
            &top,
            &["clone", "-q", "--bare", "--no-hardlinks", "folder", to],
        )?;
        if is_root() {
            // Git serves nobody else's repository.
            run_quietly(Command::new("chown").args(["-R", "0:0"]).arg(&served))?;
        }
        for setting in [
            ["http.receivepack", "true"],
            // A push would start it in the background, where it outlives the test.
            ["receive.autogc", "false"],
        ] {
            run_quietly(
                Command::new("git")
                    .args(["config", "--file"])
                    .arg(bare.join("config"))
                    .args(setting),
            )?;
        }
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../engine/tests/integration/shared/server.py"
        );
        let mut server = Command::new("python3")
            .arg(script)
            .args([&served, &served.join("requests.log")])
            .arg(format!("user:{}", PASSWORD[1]))
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the git server")?;
        let mut line = String::new();
        let out = server.stdout.take().context("no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let port: u16 = line.trim().parse()?;
        let forge = Double::start(kind);
        let word = match kind {
            Kind::GitHub => "github",
            Kind::GitLab => "gitlab",
            Kind::Gitea => "gitea",
        };
        let run = env.run_with(fixture, &[], "sed -i s/two/2/ a.txt; echo x > x.txt")?;
        let run = run["run"].as_str().context("no run")?.to_owned();
        let settings = format!(
            "[forge.\"127.0.0.1:{port}\"]\nkind = \"{word}\"\napi = \"http://127.0.0.1:{}/api\"\n\
             token = \"env:FORGE_TOKEN\"\ntimeout = \"2s\"\n",
            forge.port
        );
        let path = fixture.state.join("config.toml");
        fs::write(&path, settings)?;
        let url = format!("http://user:{}@127.0.0.1:{port}/owner/app.git", PASSWORD[0]);
        env.git(
            fixture,
            &fixture.folder,
            &["config", "remote.origin.url", &url],
        )?;
        Ok(Self {
            env,
            fixture,
            forge,
            server,
            served,
            run,
        })
    }

    /// `apply RUN --pull-request` with more words.
    fn publish(&self, words: &[&str]) -> Result<Output> {
        let all = [
            &["apply", &self.run, "--pull-request", "--author", AUTHOR],
            words,
        ]
        .concat();
        let output = self
            .env
            .call(self.fixture)
            .variable("FORGE_TOKEN", TOKEN)
            .finish(&all)?;
        for secret in [TOKEN, PASSWORD[0], PASSWORD[1], "\u{1b}"] {
            let told = output.stdout.contains(secret) || output.stderr.contains(secret);
            ensure!(!told, "{secret:?} is told: {}", output.tail());
        }
        Ok(output)
    }

    /// What the remote has: one branch a line.
    fn refs(&self) -> Result<String> {
        let output = Command::new("git")
            .arg("--git-dir")
            .arg(self.served.join("owner/app.git"))
            .args(["for-each-ref", "--format=%(refname) %(objectname)"])
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn asked(&self) -> usize {
        let state = self.forge.state.lock();
        state.expect("nobody panics with it").asked.len()
    }

    /// On a bad day: the branch stays, and somebody is told what to do.
    fn fails(&self, day: Day, word: &str, hint: &str) -> Result<()> {
        self.forge.set(day);
        let output = self.publish(&[])?;
        output.exits(4).with_context(|| format!("{day:?}"))?;
        let pushed = format!("branch `ringfence/{}` is pushed", self.run);
        for part in [pushed.as_str(), word, hint, "hint:"] {
            ensure!(
                output.stderr.contains(part),
                "{day:?}: no `{part}`: {}",
                output.stderr
            );
        }
        self.forge.set(Day::Good);
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Whether any file below has these bytes, but for one.
fn found_below(top: &Path, needle: &[u8], but: &Path) -> Result<Option<PathBuf>> {
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?.file_type();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && path != but
                && memchr::memmem::find(&fs::read(&path)?, needle).is_some()
            {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

fn is_missing() -> bool {
    let found = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let missing = !found("git") || !found("python3");
    if missing {
        println!("SKIPPED pull requests: git or python3 is missing");
    }
    missing
}

#[test]
fn r29_a_pull_request_is_opened_once_whatever_the_forge_does() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    in_each_mode("published", |env, fixture| {
        for kind in [Kind::GitHub, Kind::GitLab, Kind::Gitea] {
            whole(&Bench::new(env, fixture, kind)?).with_context(|| format!("{kind:?}"))?;
        }
        Ok(())
    })
}

fn whole(bench: &Bench<'_>) -> Result<()> {
    let (env, fixture, run) = (bench.env, bench.fixture, &bench.run);
    let before = bench.refs()?;
    ensure!(before.lines().count() == 1, "{before}");
    let heads = || {
        let words = ["for-each-ref", "--format=%(refname) %(objectname)"];
        env.git(fixture, &fixture.folder, &words)
    };
    let local = heads()?;

    // Nobody has approved it; and looking asks nobody and makes nothing.
    let refused = bench.publish(&[])?;
    refused.exits(3)?;
    let looked = bench.publish(&["--check-only", "--message", "Two is 2"])?;
    looked.exits(0)?;
    ensure!(
        looked
            .stdout
            .contains(&format!("branch `ringfence/{run}` would hold tree")),
        "{}",
        looked.stdout
    );
    env.ringfence(fixture, 60, &["approve", run])?.exits(0)?;
    // Never to the default branch, whatever it is called here.
    for branch in ["main", "HEAD", "refs/heads/main", "-f"] {
        let output = bench.publish(&[&format!("--branch={branch}")])?;
        ensure!(!output.status.success(), "{branch}: {}", output.tail());
    }
    // Where the forge is not known, nothing is made that would be in the way later.
    let address = |url: &str| {
        let words = ["config", "remote.origin.url", url];
        env.git(fixture, &fixture.folder, &words)
    };
    let url = env.git(fixture, &fixture.folder, &["config", "remote.origin.url"])?;
    address("https://forge.example/owner/app.git")?;
    let output = bench.publish(&[])?;
    ensure!(!output.status.success(), "{}", output.tail());
    address(url.trim())?;
    ensure!(bench.refs()? == before && bench.asked() == 0);
    ensure!(heads()? == local, "a branch was left: {}", heads()?);
    // A branch of the user's own is not taken because it ends in the same files.
    let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
    let words = ["apply", run, "--branch", "same", "--author", AUTHOR];
    env.ringfence(fixture, 60, &words)?.exits(0)?;
    let own = git(&["commit-tree", "same^{tree}", "-p", "main", "-m", "own"])?;
    git(&["branch", "own", own.trim()])?;
    let output = bench.publish(&["--branch", "own"])?;
    ensure!(
        output.stderr.contains("it is there already"),
        "{}",
        output.tail()
    );
    ensure!(bench.refs()? == before && bench.asked() == 0);
    git(&["branch", "-qD", "own", "same"])?;

    // The first try makes the commit, as it was asked for, without a branch being named.
    bench.forge.set(Day::Status(401));
    let words = ["--message", "Two is 2", "--base", "main"];
    let output = bench.publish(&words)?;
    output.exits(4)?;
    ensure!(
        output.stderr.contains("does not accept the token (401)"),
        "{}",
        output.stderr
    );
    bench.forge.set(Day::Good);
    let after = bench.refs()?;
    let pushed = after.strip_prefix(before.as_str()).unwrap_or(&after);
    let (name, commit) = pushed.trim().split_once(' ').context("nothing is pushed")?;
    ensure!(name == format!("refs/heads/ringfence/{run}"), "{after}");
    let shown = env.git(
        fixture,
        &fixture.folder,
        &["show", "-s", "--format=%an <%ae>%n%P%n%B", commit],
    )?;
    let parent = env.git(fixture, &fixture.folder, &["rev-parse", "main"])?;
    ensure!(
        shown.starts_with(&format!("{AUTHOR}\n{parent}Two is 2\n")),
        "{shown}"
    );
    ensure!(
        shown.contains(&format!("Ringfence-Run: {run}")) && shown.contains("Ringfence-Bundle: "),
        "{shown}"
    );

    // More bad days: the same branch, the same commit, nothing open.
    let again = "doubles nothing";
    bench.fails(Day::Status(401), "does not accept the token (401)", again)?;
    bench.fails(Day::Status(404), "knows no project `owner/app`", again)?;
    bench.fails(Day::Status(422), "refused the request (422)", "by hand")?;
    bench.fails(Day::Status(500), "trouble of its own (500)", again)?;
    bench.fails(Day::Silence, "did not answer in time", again)?;
    ensure!(bench.forge.open().is_empty());
    // It was opened, and the answer was lost; then it is found, however often it is asked for.
    bench.fails(Day::AnswerLost, "opened no pull request", again)?;
    for day in [Day::Good, Day::Forgetful, Day::Good] {
        bench.forge.set(day);
        let output = bench.publish(&["--json"])?;
        output.exits(0).with_context(|| format!("{day:?}"))?;
        let told = output.json.clone().with_context(|| output.tail())?;
        ensure!(
            told["found"] == true && told["number"] == 1 && told["commit"] == commit,
            "{day:?}: {told}"
        );
    }
    let output = bench.publish(&[])?;
    output.exits(0)?;
    ensure!(
        output
            .stdout
            .contains("pull request 1 into `main` is open already"),
        "{}",
        output.stdout
    );
    ensure!(bench.forge.open().len() == 1, "{:?}", bench.forge.open());
    ensure!(bench.refs()? == after, "{}", bench.refs()?);

    // The token is in no file; the password in none but the user's own settings.
    let own = fixture.folder.join(".git/config");
    for top in [&fixture.state, &fixture.folder, &bench.served] {
        for secret in [TOKEN, PASSWORD[0], PASSWORD[1]] {
            let found = found_below(top, secret.as_bytes(), &own)?;
            ensure!(found.is_none(), "{secret} is in {found:?}");
        }
    }
    let left = fs::read_dir(&fixture.state)?.flatten();
    let mut left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("push-"));
    ensure!(left.next().is_none());
    // Another bench begins anew.
    env.git(
        fixture,
        &fixture.folder,
        &["branch", "-qD", &format!("ringfence/{run}")],
    )?;
    Ok(())
}
