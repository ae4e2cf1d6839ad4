//! Points at which a test can kill this process, to see what the next one makes of it.
//!
//! Compiled only with the feature `failpoints`; a released program has none. `RINGFENCE_FAIL` names
//! a point; the process is gone there as by `kill -9`, without a word to anybody.

/// Dies here if this point is the one.
#[cfg(feature = "failpoints")]
pub fn point(name: &str) {
    if std::env::var("RINGFENCE_FAIL").is_ok_and(|wanted| wanted == name) {
        let me = rustix::process::getpid();
        // Nothing can be done about a signal that is not taken.
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
}

/// Nothing, in what people run.
#[cfg(not(feature = "failpoints"))]
pub fn point(_name: &str) {}
