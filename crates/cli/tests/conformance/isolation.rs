//! The attacks of the corpus that are programs: each of them must fail at every backend. Many run one
//! after another in one sandbox, which is cleaned between them. An attack that did not run to its end
//! there runs again in its own sandbox. One success counts as a success.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};

use crate::cases::{self, Case, Oracle};
use crate::columns::Root;
use crate::scene::{Scene, Seen};
use crate::support::{Fixture, Sandboxed, expect};

/// Attacks that are not tried here, with what shows the same.
const ELSEWHERE: &[(&str, &str)] = &[
    ("proc-009", "the row of processes"),
    ("proc-010", "the row of processes"),
    ("proc-014", "the row of processor time"),
    ("proc-016", "the row of the disk"),
];
/// Those that only mean something where the caller has a terminal.
const ON_A_TERMINAL: &[&str] = &["tty-001", "tty-005"];

/// What of the corpus is tried, by the beginning of its id.
pub const AREAS: &[(&str, &[&str])] = &[
    ("kernel", &["kern-", "net-"]),
    ("processes", &["proc-"]),
    ("files", &["fs-", "git-"]),
    ("environment", &["env-"]),
    ("terminal", &["tty-"]),
    ("what the host tells of itself", &["info-"]),
];

/// The attacks of an area.
pub fn of(area: &str) -> Result<Vec<Case>> {
    let begins = AREAS.iter().find(|(name, _)| *name == area);
    let (_, begins) = begins.context("there is no such area")?;
    let cases = cases::load()?.into_iter();
    let cases = cases.filter(|case| case.oracle == Oracle::ExitNonzero);
    let cases = cases.filter(|case| begins.iter().any(|begin| case.id.starts_with(begin)));
    Ok(cases
        .filter(|case| !ELSEWHERE.iter().any(|(id, _)| *id == case.id))
        .collect())
}

/// Every case is in an area, so that a new one is not forgotten.
pub fn unheard() -> Result<Vec<String>> {
    let cases = cases::load()?.into_iter();
    let cases = cases.filter(|case| case.oracle == Oracle::ExitNonzero);
    let all = AREAS.iter().flat_map(|(_, begins)| *begins);
    let begins: Vec<&&str> = all.collect();
    Ok(cases
        .map(|case| case.id)
        .filter(|id| !begins.iter().any(|begin| id.starts_with(**begin)))
        .collect())
}

/// How an attack ended: its exit code, where one came out.
pub type Verdicts = BTreeMap<String, i32>;

/// Runs every case that stands in `cases/`, one after the other, and says how each ended.
///
/// A case may fill the temporary directories or the folder: what it left is removed after it.
pub const DRIVER: &str = r#"
cd /workspace || exit 90
for case in /workspace/cases/*.sh; do
    name=${case##*/}; name=${name%.sh}
    timeout -k 1 15 setsid sh "$case" </dev/null >/dev/null 2>&1
    echo "VERDICT $name $?"
    cd /workspace || exit 91
    for place in /tmp /dev/shm "$HOME"; do
        case $place in /tmp|/dev/shm|/home/agent) find "$place" -mindepth 1 -delete 2>/dev/null;; esac
    done
    for left in * .[!.]*; do
        case $left in a.txt|README.md|src|.git|.gitignore|cases|host.sock) ;; *) rm -rf "$left" 2>/dev/null;; esac
    done
done
exit 0
"#;

/// Puts cases into the folder, as scripts.
pub fn place(env: &Sandboxed, fixture: &Fixture, cases: &[&Case]) -> Result<Option<UnixListener>> {
    let directory = fixture.folder.join("cases");
    fs::create_dir_all(&directory)?;
    for case in cases {
        let script = directory.join(format!("{}.sh", case.id));
        fs::write(&script, env.fill(&case.command, fixture, "/workspace"))?;
    }
    // A program of the host that listens within the folder, for the one case about it.
    if !cases.iter().any(|case| case.id == "fs-130") {
        return Ok(None);
    }
    let path = fixture.folder.join("host.sock");
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(Some(listener))
}

pub fn verdicts(text: &str) -> Verdicts {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("VERDICT "));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs
        .filter_map(|(id, code)| Some((id.to_owned(), code.trim().parse().ok()?)))
        .collect()
}

/// INVARIANT: no case runs before it is seen that the agent is not root of the host: some write
/// settings of the kernel.
fn refuse_host_root(scene: &Scene<'_>) -> Result<()> {
    let shell = "awk -v u=\"$(id -u)\" '$1 <= u && u < $1 + $3 { exit u - $1 + $2 == 0 } ' /proc/self/uid_map \
        && grep -q '^CapEff:[[:space:]]*0*$' /proc/self/status";
    let result = scene.run(&[], shell)?;
    expect(&result, "exit_code", 0).context("the agent is root of the host, or has a capability")
}

/// What a shell exits with where a program is not there or does not start.
const NOT_STARTED: [i32; 2] = [126, 127];
/// What `timeout` exits with when it ended the attack.
const CUT_OFF: [i32; 2] = [124, 137];

/// Those that bring a program as C.
pub fn is_compiled(case: &Case) -> bool {
    case.command.contains("\ncc ")
}

/// Runs all attacks; once for a column.
fn all(scene: &Scene<'_>) -> Result<Verdicts> {
    refuse_host_root(scene)?;
    let mut cases = Vec::new();
    for (area, _) in AREAS {
        cases.extend(of(area)?);
    }
    if scene.column.root == Root::Image {
        cases.retain(|case| !is_compiled(case));
    }
    let (alone, grouped): (Vec<&Case>, Vec<&Case>) = cases
        .iter()
        .partition(|case| ON_A_TERMINAL.contains(&case.id.as_str()));
    let _kept = place(scene.env, &scene.fixture, &grouped)?;
    let result = scene.run(&["--timeout", "200s"], DRIVER)?;
    let text = fs::read_to_string(result["stdout"]["file"].as_str().unwrap_or_default());
    let mut ended = verdicts(&text.unwrap_or_default());
    for case in &cases {
        // An attack without an exit code was killed together with the driver; one that could not start may have met
        // a full disk; one that was cut off may have been slowed down.
        let is_final = |code: &i32| !NOT_STARTED.contains(code) && !CUT_OFF.contains(code);
        let is_known = ended.get(&case.id).is_some_and(is_final);
        let terminal = alone.iter().any(|one| one.id == case.id);
        if !is_known || terminal {
            let line = scene.env.fill(&case.command, &scene.fixture, "/workspace");
            ended.insert(case.id.clone(), by_itself(scene, &line, terminal)?);
        }
    }
    Ok(ended)
}

/// All attacks of an area.
pub fn area(scene: &Scene<'_>, area: &str) -> Result<Seen> {
    let mut ended = scene.attacks.lock().expect("no worker panics");
    let ended = ended.get_or_insert_with(|| all(scene).map_err(|error| format!("{error:#}")));
    let ended = ended.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut cases = of(area)?;
    cases.retain(|case| ended.contains_key(&case.id));
    let worked = |code: &i32| *code == 0;
    let lacking = |code: &i32| NOT_STARTED.contains(code);
    let names = |wanted: &dyn Fn(&i32) -> bool| -> Vec<&str> {
        let found = cases.iter().filter(|case| wanted(&ended[&case.id]));
        found.map(|case| case.id.as_str()).collect()
    };
    let (worked, lacking) = (names(&worked), names(&lacking));
    let lacking: Vec<&str> = lacking.into_iter().filter(|id| *id != "proc-023").collect();
    ensure!(
        lacking.is_empty() || scene.column.root == Root::Image,
        "a program is missing inside for {lacking:?}"
    );
    if !lacking.is_empty() {
        println!(
            "SKIPPED conformance {}: the image lacks a program for {lacking:?}",
            scene.column.name
        );
    }
    let tried = cases.len() - lacking.len();
    let failed = tried - worked.len();
    Ok(if worked.is_empty() {
        Seen::As(format!("all {tried} fail"))
    } else {
        Seen::Partly(format!(
            "{failed} of {tried} fail; not {}",
            worked.join(", ")
        ))
    })
}

/// One attack in a sandbox of its own; the code that it exits with.
fn by_itself(scene: &Scene<'_>, line: &str, terminal: bool) -> Result<i32> {
    let words = scene.options(&["--json", "--timeout", "30s", "--", "sh", "-c", line]);
    let words = [&["run"], &words[..]].concat();
    let mut call = scene.call();
    if terminal {
        call = call.within(&crate::exec::TERMINAL);
    }
    let output = call.finish(&words)?;
    let result = output.json.as_ref().with_context(|| output.tail())?;
    let outcome = result["outcome"].as_str().unwrap_or_default();
    ensure!(
        !matches!(outcome, "" | "not_started" | "runtime_lost" | "timed_out"),
        "it is not known whether the attack `{line}` works: {outcome}"
    );
    // A signal, or a bound: whatever it was, it did not get what it wanted.
    Ok(result["exit_code"].as_i64().map_or(1, |code| code as i32))
}
