//! Times of one thing, and how several things are timed in turn.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// BOUND: rounds before counting starts, until caches are as warm as they get.
const WARM_UP: usize = 3;

/// Times of one thing, the shortest first.
#[derive(Debug)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub fn min(&self) -> Duration {
        self.percentile(0)
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// The time that this many percent do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get(last.min((self.0.len() * percent).div_ceil(100).saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}

/// One of several things that are timed in turn.
pub struct Contender<'a> {
    pub name: String,
    before: Box<dyn FnMut() -> Result<()> + 'a>,
    once: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, once: impl FnMut() -> Result<()> + 'a) -> Self {
        Self {
            name: name.into(),
            before: Box::new(|| Ok(())),
            once: Box::new(once),
        }
    }

    /// What is done before each time, and does not count.
    pub fn after(mut self, before: impl FnMut() -> Result<()> + 'a) -> Self {
        self.before = Box::new(before);
        self
    }

    /// Does it once.
    pub fn time(&mut self) -> Result<Duration> {
        (self.before)().with_context(|| format!("before {}", self.name))?;
        let began = Instant::now();
        (self.once)().with_context(|| self.name.clone())?;
        Ok(began.elapsed())
    }
}

/// Times all of them in turn (A B C A B C …), so that what the machine does meanwhile meets all.
pub fn in_turn(rounds: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<Samples>> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..WARM_UP + rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let time = contender.time()?;
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    Ok(times.into_iter().map(Samples::new).collect())
}
