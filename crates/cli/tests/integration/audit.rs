//! `ringfence audit` from outside: what happened is told, and a journal that was touched is found.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ringfence_engine::journal::JournalFile;
use ringfence_model::ByteText;
use ringfence_model::journal::Event;
use ringfence_model::observed::{Exec, Write, Wrote};
use ringfence_model::text::misleads;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Fixture, Output, RUN_SECONDS, Sandboxed, Terminal, in_each_mode};

/// `ringfence audit` with these words, whatever comes of it.
fn audit(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Output> {
    env.ringfence(fixture, RUN_SECONDS, &[&["audit"], words].concat())
}

/// The same; it must exit so, and say this.
fn says(
    env: &Sandboxed,
    fixture: &Fixture,
    words: &[&str],
    code: i32,
    parts: &[&str],
) -> Result<Output> {
    let output = audit(env, fixture, words)?;
    output.exits(code).with_context(|| format!("{words:?}"))?;
    let said = format!("{}{}", output.stdout, output.stderr);
    for part in parts {
        ensure!(said.contains(part), "{words:?}: no {part:?} in {said}");
    }
    ensure!(!said.contains("panicked"), "{said}");
    Ok(output)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}

/// The bundle of a run that has just been made.
fn bundle(env: &Sandboxed, fixture: &Fixture, shell: &str) -> Result<PathBuf> {
    let result = env.run_with(fixture, &[], shell)?;
    Ok(PathBuf::from(
        result["bundle"].as_str().context("no bundle")?,
    ))
}

#[test]
fn a_run_is_told_by_any_of_its_names_and_from_its_bundle() -> Result<()> {
    in_each_mode("told", |env, fixture| {
        let result = env.run_with(fixture, &["--name", "mine"], "echo x > new; exit 3")?;
        let id = result["run"].as_str().context("no id")?;
        let bundle = Path::new(result["bundle"].as_str().context("no bundle")?);
        let journal = bundle.join("audit.jsonl");
        let parts = [
            "asked: sh -c 'echo x > new; exit 3'",
            "proved: ",
            "command: sh -c 'echo x > new; exit 3'",
            "command ended: exit 3",
            " of CPU, ",
            "iB at most",
            "sealed: 1 change, 0 left behind",
            "over: failed",
        ];
        for name in [id, &id[..6], "mine", "last", text(bundle), text(&journal)] {
            let output = says(env, fixture, &[name], 0, &parts)?;
            ensure!(output.stderr.is_empty(), "{}", output.stderr);
            says(
                env,
                fixture,
                &["verify", name],
                0,
                &["whole: ", "result.json"],
            )?;
        }
        says(env, fixture, &[], 0, &parts)?;
        says(
            env,
            fixture,
            &["verify"],
            0,
            &["in result.json, in manifest.json, in the store"],
        )?;
        // Every line as it is stored, and filtered.
        let stored = fs::read_to_string(&journal)?;
        ensure!(audit(env, fixture, &["--json"])?.stdout == stored);
        let failed = audit(env, fixture, &["--json", "--failed"])?.stdout;
        let kinds: Vec<Value> = failed
            .lines()
            .map(|line| Ok(serde_json::from_str::<Value>(line)?["event"]["kind"].clone()))
            .collect::<Result<_>>()?;
        ensure!(
            kinds.contains(&"command_ended".into()) && !kinds.contains(&"proof".into()),
            "{failed}"
        );
        for line in failed.lines() {
            ensure!(stored.lines().any(|stored| stored == line), "{line}");
        }
        says(
            env,
            fixture,
            &["--network"],
            0,
            &["nothing asked for the network"],
        )?;
        let network = audit(env, fixture, &["--network", "--json"])?;
        ensure!(network.stdout.is_empty());
        Ok(())
    })
}

#[test]
fn a_bundle_is_checked_without_a_home() -> Result<()> {
    in_each_mode("offline", |env, fixture| {
        let bundle = bundle(env, fixture, "echo x > new")?;
        let nowhere = fixture.folder.join("a.txt/home");
        for words in [
            &["audit", "verify", text(&bundle)][..],
            &["audit", text(&bundle)],
        ] {
            let call = env.call(fixture).variable("RINGFENCE_HOME", text(&nowhere));
            call.finish(words)?.exits(0)?;
        }
        Ok(())
    })
}

/// Puts something in the place of a journal, and says what `verify` makes of it.
fn verified(
    env: &Sandboxed,
    fixture: &Fixture,
    journal: &Path,
    content: &[u8],
) -> Result<(i32, String)> {
    fs::write(journal, content)?;
    let output = audit(env, fixture, &["verify"])?;
    Ok((output.status.code().context("killed")?, output.stdout))
}

#[test]
fn r26_a_journal_that_was_touched_is_found() -> Result<()> {
    in_each_mode("touched", |env, fixture| {
        let bundle = bundle(env, fixture, "echo x > new")?;
        let journal = bundle.join("audit.jsonl");
        let stored = fs::read(&journal)?;
        let lines: Vec<&[u8]> = stored.split_inclusive(|&byte| byte == b'\n').collect();
        let last = lines.len();
        let flipped = |line: usize, at: usize| {
            let mut bytes = lines.concat();
            let start = lines[..line].concat().len();
            bytes[start + at] ^= 4;
            bytes
        };
        let added = [&stored[..], lines[last - 1]].concat();
        let mut cases: Vec<(String, Vec<u8>)> = vec![
            ("first dropped".into(), lines[1..].concat()),
            ("last dropped".into(), lines[..last - 1].concat()),
            ("all but one dropped".into(), lines[0].to_vec()),
            ("added".into(), added),
            ("empty".into(), Vec::new()),
            ("cut".into(), stored[..stored.len() - 7].to_vec()),
            ("no newline".into(), stored[..stored.len() - 1].to_vec()),
            ("a newline more".into(), [&stored[..], b"\n"].concat()),
            ("a zero more".into(), [&stored[..], b"\0"].concat()),
        ];
        let mut swapped = lines.clone();
        swapped.swap(1, 2);
        cases.push(("swapped".into(), swapped.concat()));
        for (line, bytes) in lines.iter().enumerate() {
            for at in (0..bytes.len()).step_by(bytes.len().div_ceil(4)) {
                cases.push((format!("byte {at} of line {}", line + 1), flipped(line, at)));
            }
        }
        for (what, content) in &cases {
            let (code, said) = verified(env, fixture, &journal, content)?;
            ensure!(
                code == 1 && said.contains("NOT WHOLE") && said.contains("line"),
                "{what}: exit {code}: {said}"
            );
        }
        // It says where.
        let (_, said) = verified(env, fixture, &journal, &flipped(2, 30))?;
        ensure!(said.contains("line 3") || said.contains("line 4"), "{said}");
        let (_, said) = verified(env, fixture, &journal, &lines[..last - 1].concat())?;
        ensure!(said.contains("cut off"), "{said}");
        // What holds is told, and that it is not all.
        says(env, fixture, &[], 1, &["asked: ", "is not whole"])?;
        // A result that was edited to match does not help: the store knows better.
        let shorter = lines[..last - 1].concat();
        fs::write(&journal, &shorter)?;
        for name in ["result.json", "manifest.json"] {
            fs::remove_file(bundle.join(name))?;
        }
        says(env, fixture, &["verify"], 1, &["the store"])?;
        // Elsewhere nobody knows, and that is said.
        let copy = fixture.folder.join("copy.jsonl");
        fs::write(&copy, &shorter)?;
        says(
            env,
            fixture,
            &["verify", text(&copy)],
            0,
            &["no head is known", "does not say that all is over"],
        )?;
        let head = "0".repeat(64);
        let words = ["verify", text(&copy), "--head", &head];
        says(env, fixture, &words, 1, &["`--head`"])?;
        fs::write(&journal, &stored)?;
        says(env, fixture, &["verify"], 0, &["whole"])?;
        Ok(())
    })
}

#[test]
fn what_runs_and_what_was_lost_is_told_as_far_as_it_is_known() -> Result<()> {
    in_each_mode("lost", |env, fixture| {
        let shell = "echo up; read word; echo $word";
        let mut live = env.call(fixture).run_live(&[], shell)?;
        live.until("up")?;
        says(env, fixture, &[], 0, &["command: sh -c", "it is running"])?;
        says(env, fixture, &["verify"], 0, &["whole", "no head is known"])?;
        live.signal(Signal::KILL)?;
        drop(live);
        says(env, fixture, &[], 0, &["command: sh -c", "it was lost"])?;
        let output = says(env, fixture, &["verify", "--json"], 0, &[])?;
        let verdict = output.json.context("no verdict")?;
        ensure!(
            verdict["whole"] == true && verdict["ended"] == false,
            "{verdict}"
        );
        Ok(())
    })
}

#[test]
fn a_lasting_sandbox_is_told_execution_by_execution() -> Result<()> {
    in_each_mode("executions", |env, fixture| {
        let ring = |words: &[&str]| -> Result<String> {
            let output = env.ringfence(fixture, RUN_SECONDS, words)?;
            ensure!(output.status.success(), "{words:?}: {}", output.tail());
            Ok(output.stdout)
        };
        let id = ring(&["sandbox", "create", "--empty", "--name", "box"])?;
        let id = id.trim();
        says(env, fixture, &["box"], 2, &["has no journal yet"])?;
        for word in ["one", "two"] {
            ring(&["sandbox", "exec", id, "--", "echo", word])?;
            says(env, fixture, &["box"], 0, &["it is running"])?;
            ring(&["sandbox", "stop", id])?;
        }
        let told = says(env, fixture, &[id], 0, &["echo one", "echo two"])?;
        let order: Vec<usize> = [
            "execution 1",
            "echo one",
            "execution ended: stopped",
            "execution 2",
        ]
        .iter()
        .map(|part| told.stdout.find(part).context("not told"))
        .collect::<Result<_>>()?;
        ensure!(order.is_sorted(), "{}", told.stdout);
        says(
            env,
            fixture,
            &["verify", "box"],
            0,
            &[
                "audit-1.jsonl",
                "audit-2.jsonl",
                "the head is the one in the store",
            ],
        )?;
        let journal = fixture
            .state
            .join("sandboxes")
            .join(id)
            .join("audit-2.jsonl");
        let stored = fs::read_to_string(&journal)?;
        let end = stored.trim_end().rfind('\n').context("one line")?;
        fs::write(&journal, &stored[..=end])?;
        says(env, fixture, &["verify", "box"], 1, &["the store"])?;
        // A journal that is gone altogether is missed.
        fs::remove_file(journal.with_file_name("audit-1.jsonl"))?;
        says(env, fixture, &["box"], 1, &["execution 1 has no journal"])?;
        // A run of the same name is somebody else.
        env.run_with(fixture, &["--name", "box"], "true")?;
        says(
            env,
            fixture,
            &["box"],
            2,
            &["stands for run", "give the whole id"],
        )?;
        says(env, fixture, &[id], 1, &["echo two"])?;
        ring(&["sandbox", "rm", id])?;
        Ok(())
    })
}

#[test]
fn wrong_words_are_answered_in_words() -> Result<()> {
    in_each_mode("wrong", |env, fixture| {
        let folder = &fixture.folder;
        let own = |words: &[&str]| env.as_owner(fixture, folder, words);
        own(&["mkfifo", "fifo"])?;
        own(&["mkdir", "hollow", "closed"])?;
        own(&["truncate", "--size=70M", "huge"])?;
        own(&["ln", "-s", "nowhere", "dangling"])?;
        env.put(fixture, "empty", "")?;
        env.put(fixture, "binary", [0, 159, 146, 150, 255, 10])?;
        env.put(fixture, "audit.jsonl", "{}\n")?;
        for (name, code, part) in [
            ("nonesuch", 2, "there is no run, sandbox or file `nonesuch`"),
            ("no/such", 2, "there is no file or directory `no/such`"),
            ("./dangling", 2, "there is no file or directory"),
            ("./fifo", 2, "is not a regular file"),
            ("fifo", 2, "is not a regular file"),
            ("/dev/zero", 2, "is not a regular file"),
            ("./huge", 2, "73400320 bytes"),
            ("./hollow", 2, "holds no journal"),
            ("./empty", 1, "it holds no line"),
            ("./binary", 1, "line 1 is not a line of a journal"),
            ("./a.txt", 1, "line 1 is not a line of a journal"),
            (".", 1, "line 1 is not a line of a journal"),
        ] {
            for words in [&[name][..], &["verify", name]] {
                says(env, fixture, words, code, &[part])?;
            }
        }
        // Nothing has run yet.
        says(env, fixture, &[], 2, &["there is no run yet"])?;
        says(env, fixture, &["--grep", "("], 2, &["`(` is not a regular"])?;
        says(
            env,
            fixture,
            &["--tree", "--json"],
            2,
            &["cannot be used with"],
        )?;
        says(
            env,
            fixture,
            &["verify", "--head", "x"],
            2,
            &["64 hexadecimal"],
        )?;
        Ok(())
    })
}

/// Fifty programs, in the foreground and in the background, every third of which fails.
const FIFTY: &str = "for n in $(seq 50); do \
        if [ $((n % 3)) = 0 ]; then /bin/false n$n; \
        elif [ $((n % 5)) = 0 ]; then /bin/echo n$n & \
        else /bin/echo n$n; fi; done; wait";

#[test]
fn r25_every_program_is_recorded_once() -> Result<()> {
    in_each_mode("fifty", |env, fixture| {
        env.run_with(fixture, &[], FIFTY)?;
        let json = says(env, fixture, &["--json", "--grep", " n[0-9]+$"], 0, &[])?.stdout;
        let events: Vec<Value> = json
            .lines()
            .map(|line| Ok(serde_json::from_str::<Value>(line)?["event"].clone()))
            .collect::<Result<_>>()?;
        let of = |kind: &str| {
            events
                .iter()
                .filter(|event| event["kind"] == kind)
                .collect()
        };
        let (execs, exits): (Vec<&Value>, Vec<&Value>) = (of("exec"), of("exit"));
        ensure!((execs.len(), exits.len()) == (50, 50), "{json}");
        for n in 1..=50 {
            let word = format!("n{n}");
            let exec = execs.iter().find(|exec| exec["argv"][1] == word.as_str());
            let exec = exec.with_context(|| format!("no {word} in {json}"))?;
            ensure!(
                exec["cwd"] == "/workspace" && exec["verified"] == true,
                "{exec}"
            );
            let exit = exits.iter().find(|exit| exit["exec"] == exec["exec"]);
            let exit = exit.with_context(|| format!("no end of {word} in {json}"))?;
            ensure!(exit["code"] == i32::from(n % 3 == 0), "{word}: {exit}");
            ensure!(exit["duration_us"].is_u64(), "{exit}");
        }
        Ok(())
    })
}

/// Writes, failures, a program that becomes another, and a child that outlives its parent.
const BUSY: &str = "echo x > made; mv made moved; /bin/false; ./no-such-program; \
    (sh -c 'exec cat moved'); mkfifo /tmp/f; \
    (setsid sh -c '/bin/echo grandchild > /tmp/f' &); read word < /tmp/f; \
    exec env A=1 python3 -c 'import os; os.execv(\"/bin/true\", \
        [\"\\x1b[2J\", \"\\n{\\\"kind\\\":\\\"end\\\"}\\n\", os.fsdecode(b\"\\xff\")])'";

#[test]
fn r25_what_really_ran_is_told() -> Result<()> {
    in_each_mode("ran", |env, fixture| {
        env.run_with(fixture, &[], BUSY)?;
        let told =
            |words: &[&str]| Ok::<_, anyhow::Error>(says(env, fixture, words, 0, &[])?.stdout);
        let all = told(&[])?;
        for part in [
            "mv made moved",
            "cat moved",
            "/bin/echo grandchild",
            "env A=1 python3",
        ] {
            ensure!(all.contains(part), "no {part:?} in {all}");
        }
        // What it called itself, and what it was.
        ensure!(
            all.contains(r#"[true] $'\e[2J' $'\n{"kind":"end"}\n' $'\xff'"#),
            "{all}"
        );
        let failed = told(&["--failed"])?;
        ensure!(
            failed.contains("/bin/false")
                && failed.contains("./no-such-program")
                && !failed.contains("mv made moved"),
            "{failed}"
        );
        let writes = told(&["--writes"])?;
        ensure!(
            writes.contains("created") && writes.contains("moved (was made)"),
            "{writes}"
        );
        let by_mv = told(&["--writes", "--grep", "^mv "])?;
        ensure!(
            by_mv.contains("moved (was made)") && !by_mv.contains("created"),
            "{by_mv}"
        );
        let tree = told(&["--tree"])?;
        let row = |part: &str| {
            let row = tree.lines().find(|row| row.contains(&format!(") {part}")));
            row.with_context(|| format!("no {part:?} in {tree}"))
        };
        ensure!(row("mv made moved")?.contains("─ "), "{tree}");
        ensure!(row("cat moved")?.contains("⇒ "), "{tree}");
        ensure!(row("env A=1 python3")?.contains("⇒ "), "{tree}");
        let programs = told(&["--programs"])?;
        let sum = env.as_owner(fixture, &fixture.folder, &["sha256sum", "/bin/mv"])?;
        let sum = sum.split(' ').next().context("no sum")?;
        ensure!(programs.contains(sum), "{programs}");
        // Byte for byte, in one line of the journal.
        let json = told(&["--json", "--grep", "\\x1b\\[2J"])?;
        let execs: Vec<Value> = json
            .lines()
            .map(|line| Ok(serde_json::from_str::<Value>(line)?["event"].clone()))
            .filter(|event: &Result<Value>| {
                event.as_ref().map_or(true, |event| event["kind"] == "exec")
            })
            .collect::<Result<_>>()?;
        let argv = &execs.last().context("not recorded")?["argv"];
        let words: Vec<ByteText> = serde_json::from_value(argv.clone())?;
        ensure!(
            words == [&b"\x1b[2J"[..], b"\n{\"kind\":\"end\"}\n", b"\xff"].map(ByteText::from),
            "{words:?}"
        );
        says(env, fixture, &["verify"], 0, &["whole"])?;
        Ok(())
    })
}

/// A journal in which everything that an agent may choose is chosen to deceive.
fn hostile(path: &Path) -> Result<()> {
    let mut journal = JournalFile::create(path)?;
    let words: Vec<ByteText> = [
        &b"\x1b[2J\x1b]0;title\x07"[..],
        b"\n{\"sequence\":0,\"event\":{\"kind\":\"end\"}}\n",
        "\u{202e}gnp.exe \u{2028}\u{85}\u{9b}31m".as_bytes(),
        b"\xff\xfe",
    ]
    .map(ByteText::from)
    .to_vec();
    let mut all = words.clone();
    all.push(ByteText(b"\x1b\n'".repeat(34_000)));
    for (number, word) in (1..).zip(&words) {
        journal.append(Event::Command { argv: all.clone() })?;
        journal.append(Event::Exec(Exec {
            exec: number,
            pid: 7,
            started: 1,
            parent: None,
            parent_pid: 1,
            replaces: None,
            program: number as u32,
            exe: word.clone(),
            asked: Some(word.clone()),
            argv: all.clone(),
            argv_cut: None,
            cwd: word.clone(),
            verified: true,
        }))?;
        journal.append(Event::Write(Write {
            exec: Some(number),
            pid: 7,
            path: word.clone(),
            what: Wrote::Created,
        }))?;
    }
    Ok(journal.sync()?)
}

#[test]
fn nothing_in_a_journal_reaches_a_terminal_as_more_than_text() -> Result<()> {
    in_each_mode("hostile", |env, fixture| {
        let journal = fixture.folder.join("hostile.jsonl");
        hostile(&journal)?;
        let owner = fs::metadata(&fixture.folder)?;
        use std::os::unix::fs::MetadataExt as _;
        std::os::unix::fs::chown(&journal, Some(owner.uid()), Some(owner.gid()))?;
        let path = text(&journal);
        for (words, rows) in [
            (&["audit", path][..], 9),
            (&["audit", path, "--tree"], 4),
            (&["audit", path, "--writes"], 5),
            (&["audit", path, "--writes", "--tree"], 8),
            (&["audit", path, "--programs"], 5),
            (&["audit", path, "--programs", "--json"], 4),
            (&["audit", path, "--json"], 12),
            (&["audit", "verify", path], 4),
        ] {
            for terminal in [Terminal::None, Terminal::Own] {
                let output = env.ringfence_at(fixture, RUN_SECONDS, terminal, words)?;
                output.exits(0)?;
                // A terminal makes two bytes of each newline, and shows the note as well.
                let said = output.stdout.replace("\r\n", "\n");
                let bad = said.chars().find(|&c| misleads(c) && c != '\n');
                ensure!(bad.is_none(), "{words:?}: {bad:?}");
                let found = said
                    .lines()
                    .filter(|line| !line.starts_with("note: "))
                    .count();
                ensure!(found == rows, "{words:?}: {found} rows: {said}");
            }
        }
        let stored = fs::read_to_string(&journal)?;
        ensure!(audit(env, fixture, &[path, "--json"])?.stdout == stored);
        Ok(())
    })
}
