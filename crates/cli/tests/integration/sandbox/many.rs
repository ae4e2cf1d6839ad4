//! Many sandboxes at once, and episodes: fork, work, measure, throw away.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::sandbox::kit::{lasting, text};

#[test]
fn r47_forks_that_clash_in_everything_do_not_meet() -> Result<()> {
    const FORKS: usize = 12;
    lasting("clash", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo shared > shared")?;
        let count = FORKS.to_string();
        let made = kit.json(&[
            "sandbox", "fork", &id, "--count", &count, "--tag", "many", "--json",
        ])?;
        let forks: Vec<&str> = (0..FORKS).map(|n| text(&made[n], "sandbox")).collect();
        let patches: Vec<Result<String>> = std::thread::scope(|scope| {
            let work: Vec<_> = forks
                .iter()
                .map(|&fork| {
                    scope.spawn(move || -> Result<String> {
                        // The same files, the same port, the same names.
                        kit.sh(
                            fork,
                            &format!(
                                "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 4711)); \
                                 open(\"/tmp/up\", \"w\").write(\"{fork}\"); time.sleep(1000)' > /dev/null 2>&1 & \
                                 until test -s /tmp/up; do sleep 0.01; done; \
                                 echo {fork} > result; echo {fork} >> a.txt; echo {fork} > ~/state; cat /tmp/up"
                            ),
                        )?;
                        kit.done(&["sandbox", "diff", fork])
                    })
                })
                .collect();
            work.into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let mut distinct = BTreeSet::new();
        for (fork, patch) in forks.iter().zip(patches) {
            let patch = patch?;
            ensure!(
                patch.contains(&format!("+{fork}\n")) && patch.contains("b/result"),
                "{patch}"
            );
            for other in forks.iter().filter(|other| *other != fork) {
                ensure!(!patch.contains(other), "{fork} has something of {other}");
            }
            distinct.insert(patch);
        }
        ensure!(distinct.len() == FORKS);
        let running = kit
            .states()?
            .iter()
            .filter(|state| *state == "running")
            .count();
        ensure!(running == FORKS, "{running} run");
        kit.done(&["sandbox", "stop", "--tag", "many"])?;
        ensure!(kit.processes()?.iter().all(|line| !line.contains(" keep ")));
        Ok(())
    })
}

#[test]
fn r51_episodes_of_several_steps_leave_nothing_running() -> Result<()> {
    const EPISODES: usize = 3;
    lasting("episodes", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo start > steps")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "start"])?;
        for episode in 0..EPISODES {
            let fork = kit.done(&[
                "sandbox", "fork", &id, "--from", "start", "--tag", "episode",
            ])?;
            let fork = fork.trim();
            for step in 1..=5 {
                let seen = kit.sh(
                    fork,
                    &format!("tail -n 1 steps; echo {episode}.{step} >> steps; sleep 1000 > /dev/null 2>&1 &"),
                )?;
                let before = match step {
                    1 => "start\n".to_owned(),
                    _ => format!("{episode}.{}\n", step - 1),
                };
                ensure!(seen == before, "{seen}");
            }
        }
        let states = kit.states()?;
        ensure!(
            states.iter().filter(|state| *state == "running").count() == EPISODES,
            "{states:?}"
        );
        kit.done(&["sandbox", "stop", "--tag", "episode"])?;
        ensure!(!kit.states()?.contains(&"running".to_owned()));
        ensure!(kit.processes()?.iter().all(|line| !line.contains(" keep ")));
        kit.done(&["sandbox", "rm", "--tag", "episode"])?;
        ensure!(kit.states()?.len() == 1);
        ensure!(kit.sh(&id, "cat steps")? == "start\n");
        Ok(())
    })
}

/// Each command looks for what dead ones left half made. One that is done is not dead.
#[test]
fn sandboxes_made_at_once_are_all_there() -> Result<()> {
    lasting("at-once", |kit| {
        let origin = kit.create(&[])?;
        kit.sh(&origin, "echo x > x; sleep 1000 > /dev/null 2>&1 &")?;
        let made: Vec<Result<Vec<String>>> = std::thread::scope(|scope| {
            let work: Vec<_> = (0..4)
                .map(|worker| {
                    let origin = &origin;
                    scope.spawn(move || -> Result<Vec<String>> {
                        let mut kept = Vec::new();
                        for _ in 0..6 {
                            if worker % 2 == 0 {
                                // Copies of one that runs.
                                kept.push(
                                    kit.done(&["sandbox", "fork", origin])?.trim().to_owned(),
                                );
                            } else {
                                let short = kit.create_of(&["--empty"])?;
                                kept.push(kit.create_of(&["--empty"])?);
                                kit.done(&["sandbox", "rm", &short])?;
                            }
                        }
                        Ok(kept)
                    })
                })
                .collect();
            work.into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        for list in made {
            for id in list? {
                kit.expect_state(&id, "ready")?;
            }
        }
        ensure!(kit.states()?.len() == 25);
        Ok(())
    })
}

/// Each command ends what a dead `rm` began. One that is alive is not in its way.
#[test]
fn a_sandbox_can_be_removed_while_others_look() -> Result<()> {
    lasting("looked-at", |kit| {
        let origin = kit.create(&[])?;
        kit.sh(&origin, "seq 100 | xargs touch")?;
        let over = std::sync::atomic::AtomicBool::new(false);
        let looking = &|worker: usize| -> Result<()> {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                kit.done(&["status"])
                    .map_err(|error| error.context(worker))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| -> Result<()> {
            let lookers: Vec<_> = (0..3).map(|n| scope.spawn(move || looking(n))).collect();
            let removed = (0..10).try_for_each(|_| -> Result<()> {
                let fork = kit.done(&["sandbox", "fork", &origin])?;
                kit.sh(fork.trim(), "seq 101 200 | xargs touch")?;
                kit.done(&["sandbox", "rm", fork.trim()]).map(drop)
            });
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            for looker in lookers {
                looker.join().expect("no panic")?;
            }
            removed
        })?;
        ensure!(kit.states()?.len() == 1);
        Ok(())
    })
}
