//! R79: a burst of whole runs, several at a time.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peers;
use crate::place::{Place, outside};
use crate::sample::{Contender, Samples};
use crate::table::{Table, milliseconds};

const RUNS: usize = 100;
const AT_ONCE: usize = 8;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    burst(table, "ringfence run -- true", &|| place.whole_program())?;
    if outside(&mut peers::docker()).is_ok() {
        burst(table, "docker run", &peers::docker)
    } else {
        table.note("docker: no daemon answers");
        Ok(())
    }
}

fn burst(table: &mut Table, name: &str, command: &(dyn Fn() -> Command + Sync)) -> Result<()> {
    let next = AtomicUsize::new(0);
    let times: Mutex<Vec<Result<Duration>>> = Mutex::default();
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < RUNS {
                    let time = Contender::new(name, || outside(&mut command())).time();
                    times.lock().expect("no thread panics here").push(time);
                }
            });
        }
    });
    let wall = began.elapsed();
    let times = times.into_inner().expect("no thread panics here");
    let samples = Samples::new(times.into_iter().collect::<Result<_>>()?);
    table.times(name, &samples);
    table.note(&format!(
        "{RUNS} runs, {AT_ONCE} at a time: {:.0} ms in all, p99 {:.1} ms",
        milliseconds(wall),
        milliseconds(samples.percentile(99)),
    ));
    Ok(())
}
