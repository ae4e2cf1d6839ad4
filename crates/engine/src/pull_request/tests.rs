//! A real git server, a double of each forge, and bad days.

mod double;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ringfence_model::outcome::RunStatus;
use ringfence_model::verdict::Decision;

use super::kinds::Kind;
use super::*;
use crate::mirror::Silent;
use crate::source;
use crate::verdicts::Anyway;
use crate::verdicts::tests::Bench as Host;
use double::{Day, Double, TOKEN};

const KINDS: [Kind; 3] = [Kind::GitHub, Kind::GitLab, Kind::Gitea];

/// A home with an approved run, a repository with its commit, a git server and a forge.
struct Bench {
    home: Host,
    forge: Double,
    server: Child,
    url: String,
    commit: String,
}

fn git(at: &Path, words: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(at)
        .args(words)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs([
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@example.org"),
            ("GIT_COMMITTER_NAME", "a"),
            ("GIT_COMMITTER_EMAIL", "a@example.org"),
        ])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let home = Host::new(RunStatus::Done, &[]);
        home.decide(Decision::Approved, Anyway::No).unwrap();
        let top = home.directory.path();
        let bare = top.join("served/owner/app.git");
        fs::create_dir_all(&bare).unwrap();
        git(&bare, &["init", "-q", "--bare", "-b", "main"]);
        git(&bare, &["config", "http.receivepack", "true"]);
        let own = top.join("own");
        fs::create_dir(&own).unwrap();
        git(&own, &["init", "-q", "-b", "main"]);
        git(&own, &["commit", "-q", "--allow-empty", "-m", "base"]);
        git(&own, &["push", "-q", bare.to_str().unwrap(), "main"]);
        // A repository whose settings and hooks would run something, if anybody heard them.
        let hook = own.join(".git/hooks/pre-push");
        fs::write(
            &hook,
            format!("#!/bin/sh\ntouch {}/hooked\n", top.display()),
        )
        .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&hook, mode).unwrap();
        git(&own, &["config", "core.sshCommand", "touch hooked"]);
        git(&own, &["config", "credential.helper", "!touch hooked"]);
        let commit = Self::commit_in(&own, "changes of the run");
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/integration/shared/server.py"
        );
        let mut server = Command::new("python3")
            .arg(script)
            .args([&top.join("served"), &top.join("requests.log")])
            .arg("user:pass word")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = server.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap();
        let forge = Double::start(kind);
        let word = match kind {
            Kind::GitHub => "github",
            Kind::GitLab => "gitlab",
            Kind::Gitea => "forgejo",
        };
        let token = top.join("token");
        fs::write(&token, format!("{TOKEN}\n")).unwrap();
        let config = format!(
            "[forge.\"127.0.0.1:{port}\"]\nkind = \"{word}\"\napi = \"http://127.0.0.1:{}/api/\"\n\
             token = \"file:{}\"\ntimeout = \"2s\"\n",
            forge.port,
            token.display()
        );
        fs::write(home.home.root().join("config.toml"), config).unwrap();
        Self {
            home,
            forge,
            server,
            url: format!("http://user:pass%20word@127.0.0.1:{port}/owner/app.git"),
            commit,
        }
    }

    fn commit_in(own: &Path, message: &str) -> String {
        let tree = git(own, &["rev-parse", "main^{tree}"]);
        git(own, &["commit-tree", &tree, "-p", "main", "-m", message])
    }

    fn own(&self) -> PathBuf {
        self.home.directory.path().join("own")
    }

    fn bare(&self) -> PathBuf {
        self.home.directory.path().join("served/owner/app.git")
    }

    fn publish_as(&self, branch: &str, commit: &str, draft: Draft) -> Result<Published, Error> {
        let run = self.home.row();
        let publishing = Publishing {
            run: &run,
            commit: commit.to_owned(),
            hash: ObjectHash::Sha1,
            objects: vec![self.own().join(".git/objects")],
            remote: source::parse(&self.url).unwrap(),
            branch: branch.to_owned(),
            title: "A title".to_owned(),
            body: "A body".to_owned(),
            draft,
        };
        publish(&self.home.home, &self.home.store, &publishing, &mut Silent)
    }

    fn publish(&self) -> Result<Published, Error> {
        self.publish_as("ringfence/x", &self.commit, Draft::No)
    }

    fn pushed(&self) -> bool {
        let words = [
            "for-each-ref",
            "--format=%(objectname)",
            "refs/heads/ringfence/x",
        ];
        git(&self.bare(), &words) == self.commit
    }

    /// Fails, with the branch pushed, and says these words.
    fn fails(&self, day: Day, words: &[&str]) {
        self.forge.set(day);
        let error = self.publish().unwrap_err();
        let told = chain(&error);
        for word in words.iter().chain(&["branch `ringfence/x` is pushed"]) {
            assert!(told.contains(word), "{day:?}: {word} is not in {told}");
        }
        assert!(!told.contains(TOKEN) && !told.contains("pass word") && !told.contains('\u{1b}'));
        assert!(error.hint().is_some(), "{day:?}");
        assert_eq!(error.kind().exit_code(), 4, "{day:?}");
        assert!(self.pushed(), "{day:?}");
        self.forge.set(Day::Good);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn missing() -> bool {
    let found = |words: &[&str]| Command::new(words[0]).args(&words[1..]).output().is_ok();
    let missing = !found(&["git", "--version"]) || !found(&["python3", "--version"]);
    if missing {
        eprintln!("SKIPPED pull requests: git or python3 is missing");
    }
    missing
}

#[test]
fn r29_a_request_is_opened_once_on_each_forge() {
    if missing() {
        return;
    }
    for kind in KINDS {
        let bench = Bench::new(kind);
        let first = bench.publish().unwrap();
        assert!(bench.pushed() && !first.found, "{kind:?}");
        assert_eq!((first.number, &first.base[..]), (1, "main"), "{kind:?}");
        assert!(!first.remote.contains("pass"), "{first:?}");
        let open = bench.forge.open();
        assert_eq!(open.len(), 1);
        assert_eq!(open[0]["title"], "A title");
        let body = ["body", "description"].map(|key| open[0][key].as_str() == Some("A body"));
        assert!(body.contains(&true), "{open:?}");
        // Again: the same branch, the same request.
        let again = bench.publish().unwrap();
        assert!(
            again.found && again.number == 1 && again.url == first.url,
            "{kind:?}"
        );
        assert_eq!(bench.forge.open().len(), 1);
        // The list lags behind: the refusal leads to it.
        bench.forge.set(Day::Forgetful);
        let again = bench.publish().unwrap();
        assert!(again.found && again.number == 1, "{kind:?}");
        assert_eq!(bench.forge.open().len(), 1);
        // Made anew by us, it takes the place of the old one.
        let anew = Bench::commit_in(&bench.own(), "the same, later");
        let moved = bench.publish_as("ringfence/x", &anew, Draft::No).unwrap();
        assert!(moved.found && moved.commit == anew);
        let draft = bench
            .publish_as("ringfence/y", &bench.commit, Draft::Yes)
            .unwrap();
        assert!(!draft.found, "{kind:?}");
        let item = &bench.forge.open()[1];
        let marked = item["title"] != "A title" || item["draft"] == true;
        assert!(marked, "{item}");
        assert!(!bench.home.directory.path().join("hooked").exists());
        assert!(!bench.own().join("hooked").exists());
        let left = fs::read_dir(bench.home.home.root()).unwrap().flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("push-"));
        assert_eq!(left.count(), 0);
        let store = fs::read(bench.home.home.store()).unwrap();
        for secret in [TOKEN, "pass word", "pass%20word"] {
            let has = store
                .windows(secret.len())
                .any(|bytes| bytes == secret.as_bytes());
            assert!(!has, "{secret} is in the store");
        }
    }
}

#[test]
fn on_bad_days_the_branch_stays_and_nothing_is_doubled() {
    if missing() {
        return;
    }
    for kind in KINDS {
        let bench = Bench::new(kind);
        bench.fails(Day::Status(401), &["does not accept the token (401)"]);
        bench.fails(Day::Status(404), &["knows no project `owner/app`"]);
        bench.fails(
            Day::Status(422),
            &["refused the request (422): bad day [2J"],
        );
        bench.fails(Day::Status(500), &["trouble of its own (500)"]);
        bench.fails(Day::Silence, &["did not answer in time"]);
        assert_eq!(bench.forge.open().len(), 0);
        bench.fails(Day::AnswerLost, &[]);
        assert_eq!(
            bench.forge.open().len(),
            1,
            "it was opened, and nobody was told"
        );
        let found = bench.publish().unwrap();
        assert!(found.found && found.number == 1);
        assert_eq!(bench.forge.open().len(), 1);
        let row =
            bench
                .home
                .store
                .pull_request(bench.home.run.as_str(), &found.remote, "ringfence/x");
        let row = row.unwrap().unwrap();
        assert_eq!((row.state, row.number), (PullRequestState::Open, Some(1)));
    }
}

#[test]
fn r35_nothing_but_an_approved_run_and_a_branch_of_its_own_is_pushed() {
    if missing() {
        return;
    }
    let bench = Bench::new(Kind::Gitea);
    let refs = || git(&bench.bare(), &["for-each-ref"]);
    let before = refs();
    let refused = |branch: &str, code: u8, word: &str| {
        let published = bench.publish_as(branch, &bench.commit, Draft::No);
        let error = published.unwrap_err();
        assert_eq!(error.kind().exit_code(), code, "{branch}: {error}");
        assert!(chain(&error).contains(word), "{branch}: {}", chain(&error));
        assert!(error.hint().is_some(), "{branch}");
    };
    refused("main", 3, "default branch");
    refused("-x", 2, "cannot be a work branch");
    refused("refs/heads/main", 2, "cannot be a work branch");
    assert_eq!(refs(), before);
    // A branch that somebody else made, even one commit further.
    let other = Bench::commit_in(&bench.own(), "of somebody else");
    let spec = format!("{other}:refs/heads/ringfence/x");
    git(
        &bench.own(),
        &["push", "-q", bench.bare().to_str().unwrap(), &spec],
    );
    refused("ringfence/x", 2, "not of this run");
    assert!(refs().contains(&other));
    // Rejected meanwhile, or a bundle that was changed.
    bench.home.decide(Decision::Rejected, Anyway::No).unwrap();
    let before = refs();
    refused("ringfence/z", 3, "is not approved");
    assert_eq!(refs(), before);
    assert_eq!(bench.forge.state.lock().unwrap().asked.len(), 0);
}

#[test]
fn what_cannot_be_pushed_is_told_without_secrets() {
    if missing() {
        return;
    }
    let mut bench = Bench::new(Kind::GitHub);
    let right = bench.url.clone();
    bench.url = right.replace("pass%20word", "wrong-password");
    let error = bench.publish().unwrap_err();
    let told = chain(&error);
    assert!(told.contains("cannot ask"), "{told}");
    assert!(!told.contains("wrong-password"), "{told}");
    bench.url = right;
    git(
        &bench.bare(),
        &["config", "receive.denyCurrentBranch", "refuse"],
    );
    fs::write(
        bench.bare().join("hooks/pre-receive"),
        "#!/bin/sh\necho no\\ thanks >&2\nexit 1\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bench.bare().join("hooks/pre-receive"), mode).unwrap();
    let error = bench.publish().unwrap_err();
    assert!(chain(&error).contains("cannot push"), "{}", chain(&error));
    assert!(!bench.pushed());
    let refused = bench.home.home.root().join("config.toml");
    fs::write(&refused, "").unwrap();
    let error = bench.publish().unwrap_err();
    assert!(chain(&error).contains("kind of forge"), "{}", chain(&error));
}
