//! Campaigns: how far from ideal many short tasks are, what lies between two runs, what the others feel of
//! tasks that take all they can get, and how many can be there at once.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::place::{Place, names};
use crate::sample::Samples;
use crate::table::{Table, milliseconds};

const TASKS: usize = 200;
const PARALLEL: usize = 8;
/// BOUND: wall time against tasks of one second without anything around them.
const TIMES_IDEAL: f64 = 1.15;
/// BOUND: between the end of one run and the beginning of the next, for each task.
const BETWEEN_MS: f64 = 50.0;

/// Tasks whose times are compared, with others beside them and without.
const CALM: usize = 100;
/// BOUND: how much longer the slowest of them may take.
const TIMES_CALM: f64 = 1.2;
/// Campaigns of each kind, in turn.
const ROUNDS: usize = 2;

/// A campaign on the folder: its name, its tasks, what their agent does, and how many are at once.
struct Campaign<'a> {
    name: &'a str,
    tasks: Vec<String>,
    shell: &'a str,
    parallel: usize,
    /// What each may take of it.
    memory: &'a str,
}

/// One second, and a change.
const SECOND: &str = "sleep 1; date +%N > done.txt";

/// The same, but for two that take memory and processes until somebody ends them.
const WILD: &str = r#"
case $(cat "$RINGFENCE_BRIEF") in
*a-memory*) exec python3 -c "
kept = []
while True: kept.append(bytearray(1 << 20))" ;;
*a-processes*) storm() { storm & storm & }; while :; do storm; done ;;
*) sleep 1; date +%N > done.txt ;;
esac"#;

impl Campaign<'_> {
    /// Writes its files; the words that run it.
    fn prepare(&self, place: &Place) -> Result<Command> {
        let tasks = place.folder().join("tasks");
        if tasks.exists() {
            fs::remove_dir_all(&tasks)?;
        }
        fs::create_dir(&tasks)?;
        for task in &self.tasks {
            fs::write(tasks.join(format!("{task}.txt")), "old\n")?;
        }
        fs::write(place.folder().join("BRIEF.md"), "Wait for a second.\n")?;
        fs::write(place.folder().join("agent.sh"), self.shell)?;
        let Self { name, memory, .. } = self;
        let plan = format!(
            "name = '{name}'\nbrief = 'BRIEF.md'\ncommand = ['sh', 'agent.sh']\n\
             [split]\nfiles = 'tasks/*.txt'\nper_task = 1\n[limits]\ntime = '30m'\nmemory = '{memory}'\n"
        );
        fs::write(place.folder().join("plan.toml"), plan)?;
        let parallel = self.parallel.to_string();
        let words = ["campaign", "run", "plan.toml", "--parallel", &parallel];
        let mut command = place.program_at(place.home(), &words);
        command.current_dir(place.folder());
        Ok(command)
    }

    /// The tasks of its report.
    fn report(&self, place: &Place) -> Result<Vec<Value>> {
        let words = ["campaign", "report", self.name, "--json"];
        let report = place.program_at(place.home(), &words).output()?;
        let report: Value = serde_json::from_slice(&report.stdout)?;
        Ok(report["tasks"].as_array().context("no tasks")?.clone())
    }
}

/// Names of as many tasks that do what they should.
fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("task-{at:04}")).collect()
}

fn took(task: &Value) -> Duration {
    Duration::from_millis(task["figures"]["duration_ms"].as_u64().unwrap_or_default())
}

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let campaign = Campaign {
        name: "many",
        tasks: numbered(TASKS),
        shell: SECOND,
        parallel: PARALLEL,
        memory: "1G",
    };
    let mut command = campaign.prepare(place)?;
    let began = Instant::now();
    let output = command.output()?;
    let wall = began.elapsed().as_secs_f64();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let own: Duration = campaign.report(place)?.iter().map(took).sum();
    let ideal = TASKS.div_ceil(PARALLEL) as f64;
    let times = wall / ideal;
    let between = (wall * 1000.0 * PARALLEL as f64 - milliseconds(own)) / TASKS as f64;
    table.note(&format!(
        "{TASKS} tasks of 1 s, {PARALLEL} at once: {wall:.1} s, {times:.2} × the ideal; {between:.1} ms between runs"
    ));
    table.holds(
        &format!("wall time at most {TIMES_IDEAL} × the ideal"),
        times <= TIMES_IDEAL,
    );
    table.holds(
        &format!("at most {BETWEEN_MS} ms of scheduling for each task"),
        between <= BETWEEN_MS,
    );
    Ok(())
}

/// The same tasks alone, and beside one that eats memory and one that forks without end.
pub fn neighbours(place: &Place, table: &mut Table) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    let mut ends = Vec::new();
    for round in 0..ROUNDS {
        for (wild, times) in [2, 0].into_iter().zip(&mut times) {
            let mut tasks = numbered(CALM);
            // They begin first, and so are beside all others as long as they are let.
            tasks.extend(
                ["a-memory", "a-processes"]
                    .map(str::to_owned)
                    .into_iter()
                    .take(wild),
            );
            let campaign = Campaign {
                name: &format!("beside-{wild}-{round}"),
                tasks,
                shell: WILD,
                parallel: PARALLEL + wild,
                memory: "1G",
            };
            campaign.prepare(place)?.output()?;
            for task in campaign.report(place)? {
                let state = task["state"].as_str().unwrap_or_default();
                let file = task["first_file"].as_str().unwrap_or_default();
                if file.starts_with("tasks/a-") {
                    let seconds = took(&task).as_secs_f64();
                    ends.push(format!("{file} {state} after {seconds:.1} s"));
                } else {
                    ensure!(state == "passed", "{task}");
                    times.push(took(&task));
                }
            }
        }
    }
    let [beside, alone] = times.map(|times| milliseconds(Samples::new(times).percentile(99)));
    let ratio = beside / alone;
    table.note(&format!("the two: {}", ends.join(", ")));
    table.note(&format!(
        "p99 of {CALM} tasks of 1 s, {ROUNDS} times: {alone:.0} ms alone, {beside:.0} ms beside them, {ratio:.2} ×"
    ));
    table.holds(&format!("at most {TIMES_CALM} ×"), ratio <= TIMES_CALM);
    Ok(())
}

/// BOUND: until all are there.
const GATHERS: Duration = Duration::from_secs(1200);
/// BOUND: until nothing is left of them.
const SCATTERS: Duration = Duration::from_secs(120);
const CROWD: usize = 1000;
/// Between two looks at all of them.
const LATER: Duration = Duration::from_secs(20);

/// A thousand agents that wait, all in one campaign.
pub fn crowd(place: &Place, table: &mut Table) -> Result<()> {
    // A number that nobody else sleeps.
    let seconds = format!("1{}", std::process::id());
    let campaign = Campaign {
        name: "crowd",
        tasks: numbered(CROWD),
        shell: &format!("exec sleep {seconds}"),
        parallel: CROWD,
        memory: "16M",
    };
    let began = Instant::now();
    let mut driver = campaign.prepare(place)?.stdout(Stdio::null()).spawn()?;
    let alive = || agents(&seconds);
    let gathered = until(GATHERS, || {
        Ok(alive()? >= CROWD || driver.try_wait()?.is_some())
    })?;
    table.note(&format!(
        "{} agents alive after {:.0} s",
        alive()?,
        gathered.as_secs_f64()
    ));
    std::thread::sleep(LATER);
    let second = alive()?;
    let after = began.elapsed().as_secs_f64();
    table.holds(
        &format!("{second} of {CROWD} alive after {after:.0} s"),
        second == CROWD,
    );
    let pid = Pid::from_child(&driver);
    rustix::process::kill_process(pid, Signal::INT)?;
    let ended = until(SCATTERS, || Ok(driver.try_wait()?.is_some()))?;
    let left = alive()?;
    table.holds(
        &format!(
            "{left} left, {:.0} s after an interrupt",
            ended.as_secs_f64()
        ),
        left == 0,
    );
    let layers = names(&place.home().workspaces())?.len();
    table.holds(&format!("{layers} layers left"), layers == 0);
    Ok(())
}

/// How many agents of ours sleep.
fn agents(seconds: &str) -> Result<usize> {
    let wanted = format!("sleep\0{seconds}\0");
    let is_one = |name: &OsString| {
        let line = fs::read(Path::new("/proc").join(name).join("cmdline"));
        line.is_ok_and(|line| line == wanted.as_bytes())
    };
    Ok(names(Path::new("/proc"))?
        .iter()
        .filter(|name| is_one(name))
        .count())
}

/// How long it took until something is so, or that there is no more time.
fn until(most: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let began = Instant::now();
    while began.elapsed() < most && !is_so()? {
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(began.elapsed())
}
