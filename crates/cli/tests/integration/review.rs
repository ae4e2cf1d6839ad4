//! What a hostile review found, one test each.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::support::{expect, in_each_mode, patch, said};

#[test]
fn a_closed_root_still_gives_its_patch() -> Result<()> {
    in_each_mode("closed-root", |env, fixture| {
        let result = env.run_with(fixture, &[], "echo hi > b.txt; chmod 000 .")?;
        expect(&result, "status", "done")?;
        expect(&result, "changed_files", vec!["b.txt"])
    })
}

#[test]
fn a_sub_folder_has_no_object_of_what_lies_beside_it() -> Result<()> {
    in_each_mode("beside", |env, fixture| {
        env.put(fixture, "beside.txt", "canary-beside\n")?;
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "beside"])?;
        let look = "git fsck >/dev/null && git log --oneline | wc -l; \
            for o in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do \
            git cat-file -p $o; done | grep -c canary-beside; ls /.ringfence/objects 2>/dev/null";
        let call = env.call(fixture).folder(&fixture.folder.join("src"));
        let result = call.run(&[], look)?;
        ensure!(said(&result) == "1\n0\n", "inside: {}", said(&result));
        Ok(())
    })
}

#[test]
fn what_is_hidden_has_no_other_name_and_no_object() -> Result<()> {
    in_each_mode("hidden", |env, fixture| {
        env.put(fixture, "key.pem", "canary-hidden\n")?;
        fs::hard_link(
            fixture.folder.join("key.pem"),
            fixture.folder.join("other-name"),
        )?;
        let look = "cat key.pem other-name 2>/dev/null; git show HEAD:key.pem 2>/dev/null; \
            grep -rl canary-hidden . /tmp 2>/dev/null; git rev-parse 2>&1 | grep -c 'not a git'";
        let result = env.run_with(fixture, &["--hide", "*.pem"], look)?;
        ensure!(said(&result) == "0\n", "untracked: {}", said(&result));
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "a mistake"])?;
        let result = env.run_with(fixture, &["--hide", "*.pem"], look)?;
        ensure!(said(&result) == "1\n", "tracked: {}", said(&result));
        ensure!(
            result["notes"].to_string().contains("hidden and tracked"),
            "{}",
            result["notes"]
        );
        Ok(())
    })
}

#[test]
fn a_stopped_warden_does_not_hold_the_run() -> Result<()> {
    in_each_mode("warden", |env, fixture| {
        let stop = "kill -STOP $PPID 2>/dev/null; echo over";
        let result = env.run_with(fixture, &["--timeout", "2m"], stop)?;
        expect(&result, "outcome", "exited")?;
        ensure!(said(&result) == "over\n", "{}", said(&result));
        // Neither does one that is stopped again and again by what was left behind.
        let stop = "w=$PPID; (while :; do kill -STOP $w; done) 2>/dev/null & sleep 1000";
        let result = env.run_with(fixture, &["--timeout", "2s"], stop)?;
        expect(&result, "outcome", "timed_out")
    })
}

#[test]
fn directories_that_move_under_the_count_do_not_lose_the_run() -> Result<()> {
    in_each_mode("moving", |env, fixture| {
        let race = "import os, threading\n\
            top = 'deep'; os.makedirs('/'.join([top] + ['d'] * 120))\n\
            middle = '/'.join([top] + ['d'] * 60)\n\
            def move():\n    \
                while True:\n        \
                    os.rename(middle, 'away'); os.rename('away', middle)\n\
            threading.Thread(target=move, daemon=True).start()\n\
            chunk = b'x' * 65536\n\
            for n in range(2000):\n    \
                open('f%d' % n, 'wb').write(chunk)\n";
        env.put(fixture, "race.py", race)?;
        let options = ["--disk", "20M", "--timeout", "2m"];
        let result = env.run_with(fixture, &options, "exec python3 race.py")?;
        expect(&result, "outcome", "disk_full")?;
        ensure!(!patch(&result)?.is_empty(), "nothing came out");
        Ok(())
    })
}

#[test]
fn processor_time_of_the_dead_counts() -> Result<()> {
    in_each_mode("dead", |env, fixture| {
        let burn = "while :; do timeout 0.05 sh -c 'while :; do :; done'; done";
        let options = ["--cpu-time", "1s", "--timeout", "2m"];
        let result = env.run_with(fixture, &options, burn)?;
        expect(&result, "outcome", "cpu_limit")
    })
}

#[test]
fn a_reader_that_does_not_read_holds_up_neither_bounds_nor_the_end() -> Result<()> {
    in_each_mode("reader", |env, fixture| {
        // Nobody reads the pipe: the time limit ends the run, and its result is kept.
        let words = ["run", "--timeout", "2s", "--", "yes"];
        let mut unread = env.call(fixture).command(&[], &words);
        let mut child = unread
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut listed = String::new();
        while !listed.contains("\"timed_out\"") && Instant::now() < deadline {
            listed = env.call(fixture).finish(&["list", "--json"])?.stdout;
        }
        // It still waits for its reader, as any program does, and an interrupt ends it.
        child.kill()?;
        child.wait()?;
        ensure!(listed.contains("\"timed_out\""), "{listed}");
        Ok(())
    })
}

#[test]
fn a_gitfile_does_not_open_any_repository_of_the_host() -> Result<()> {
    in_each_mode("gitfile", |env, fixture| {
        let other = fixture.folder.with_file_name("other");
        let path = other.to_str().unwrap_or_default();
        env.as_owner(fixture, std::path::Path::new("/"), &["mkdir", "-p", path])?;
        let gitfile = format!("gitdir: {}/.git\n", fixture.folder.display());
        env.as_owner(
            fixture,
            &other,
            &["sh", "-c", &format!("printf '%s' '{gitfile}' > .git")],
        )?;
        let call = env.call(fixture).folder(&other);
        let result = call.run(
            &[],
            "git log --oneline 2>/dev/null | wc -l; ls /.ringfence/objects 2>/dev/null",
        )?;
        ensure!(said(&result) == "0\n", "inside: {}", said(&result));
        ensure!(
            result["notes"].to_string().contains("does not point back"),
            "{}",
            result["notes"]
        );
        Ok(())
    })
}

#[test]
fn hidden_directories_hide_the_other_names_of_what_is_in_them() -> Result<()> {
    in_each_mode("hidden-directory", |env, fixture| {
        env.as_owner(
            fixture,
            &fixture.folder,
            &[
                "sh",
                "-c",
                "mkdir secrets pub; echo canary-key > secrets/a.pem; \
            ln secrets/a.pem pub/alias; ln secrets/a.pem secrets/b.pem",
            ],
        )?;
        let options = ["--hide", "secrets/", "--hide", "*.pem"];
        let result = env.run_with(fixture, &options, "grep -r canary-key . | wc -l")?;
        ensure!(said(&result) == "0\n", "{}", said(&result));
        Ok(())
    })
}

#[test]
fn memory_of_a_process_without_its_first_thread_counts() -> Result<()> {
    in_each_mode("threads", |env, fixture| {
        let evade = "import ctypes, threading, time\n\
            def take():\n    \
                time.sleep(0.2); kept = bytearray(b'x') * (400 << 20); time.sleep(1000)\n\
            threading.Thread(target=take).start()\n\
            ctypes.CDLL(None).syscall(60, 0)\n";
        env.put(fixture, "evade.py", evade)?;
        let options = ["--memory", "100M", "--timeout", "2m"];
        let result = env.run_with(fixture, &options, "exec python3 evade.py")?;
        expect(&result, "outcome", "out_of_memory")
    })
}

#[test]
fn processor_time_of_children_nobody_waits_for_counts() -> Result<()> {
    in_each_mode("unwaited", |env, fixture| {
        let burn = "import os, signal, time\n\
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
            for _ in range(20):\n    \
                if os.fork() == 0:\n        \
                    end = time.process_time() + 0.5\n        \
                    while time.process_time() < end: pass\n        \
                    os._exit(0)\n    \
                try: os.wait()\n    \
                except ChildProcessError: pass\n";
        env.put(fixture, "burn.py", burn)?;
        let options = ["--cpu-time", "2s", "--timeout", "2m"];
        let result = env.run_with(fixture, &options, "exec python3 burn.py")?;
        expect(&result, "outcome", "cpu_limit")
    })
}

#[test]
fn what_is_hidden_in_a_submodule_has_no_object_either() -> Result<()> {
    in_each_mode("hidden-part", |env, fixture| {
        env.put(fixture, "key.pem", "canary-part\n")?;
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "a mistake"])?;
        let above = fixture.folder.with_file_name("above");
        let (above_path, part) = (
            above.display().to_string(),
            fixture.folder.display().to_string(),
        );
        env.git(
            fixture,
            std::path::Path::new("/"),
            &["init", "-q", "-b", "main", &above_path],
        )?;
        env.git(fixture, &above, &["submodule", "add", "-q", &part, "part"])?;
        let call = env.call(fixture).folder(&above);
        let look = "git -C part show HEAD:key.pem 2>/dev/null; grep -r canary-part . | wc -l";
        let result = call.run(&["--hide", "*.pem"], look)?;
        ensure!(said(&result) == "0\n", "inside: {}", said(&result));
        Ok(())
    })
}
