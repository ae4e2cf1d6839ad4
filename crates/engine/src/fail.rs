//! Points at which a test can kill this process, to see what the next one makes of it.
//!
//! Compiled only with the feature `failpoints`; a released program has none. `RINGFENCE_FAIL` names
//! a point; the process is gone there as by `kill -9`, without a word to anybody but the file
//! `RINGFENCE_FAIL_MET`, from which the test knows that the point was met.

/// Every point, as `verb:moment`. The fault tests walk this list, and fail where one is not met.
pub const POINTS: &[&str] = &[
    "mirror:locked",
    "mirror:recorded",
    "mirror:made",
    "mirror:fetched",
    "mirror:done",
    "base:locked",
    "base:recorded",
    "base:laid",
    "base:built",
    "base:done",
    "image:unpacked",
    "image:synced",
    "image:named",
    "image:recorded",
    "image:forgot",
    "create:based",
    "create:listed",
    "create:made",
    "create:ready",
    "exec:spawned",
    "exec:opened",
    "exec:recorded",
    "exec:ran",
    "checkpoint:recorded",
    "checkpoint:moved",
    "checkpoint:copied",
    "checkpoint:sealed",
    "checkpoint:done",
    "fork:recorded",
    "fork:moved",
    "fork:copied",
    "fork:sealed",
    "fork:done",
    "fork:listed",
    "fork:made",
    "fork:ready",
    "fork:cleared",
    "rollback:ended",
    "rollback:recorded",
    "rollback:moved",
    "rollback:done",
    "stop:locked",
    "stop:ended",
    "stop:done",
    "rm:locked",
    "rm:recorded",
    "rm:moved",
    "rm:removed",
    "rm:forgot",
    "sweep:forgot",
    "gc:stopped",
    "gc:saved",
    "gc:forgot",
    "gc:forgot-base",
    "gc:forgot-mirror",
    "settle:cleared",
    "settle:synced",
    "squash:recorded",
    "squash:merged",
    "squash:done",
    "keeper:locked",
    "keeper:recorded",
    "keeper:started",
    "keeper:begun",
    "keeper:ending",
    "keeper:ended",
    "keeper:done",
    "run:changed",
    "run:rendered",
    "run:validated",
    "run:ended",
    "run:result",
    "run:summary",
    "run:manifest",
    "run:attested",
    "run:synced",
    "run:named",
    "run:packed",
    "run:held",
    "environment:ran",
    "environment:synced",
    "environment:kept",
    "apply:begun",
    "apply:staged",
    "apply:recorded",
    "apply:removed",
    "apply:half",
    "apply:swapped",
    "apply:done",
    "apply:cleared",
    "merge:objects",
    "merge:synced",
    "merge:named",
    "campaign:locked",
    "campaign:settled",
    "campaign:begun",
    "campaign:ran",
    "campaign:decided",
    "campaign:told",
];

/// Dies here if this point is the one.
#[cfg(feature = "failpoints")]
pub fn point(name: &str) {
    debug_assert!(POINTS.contains(&name), "`{name}` is not in the list");
    if std::env::var("RINGFENCE_FAIL").is_ok_and(|wanted| wanted == name) {
        if let Some(met) = std::env::var_os("RINGFENCE_FAIL_MET") {
            // The test misses it and says so.
            let _ = std::fs::write(met, name);
        }
        let me = rustix::process::getpid();
        // Nothing can be done about a signal that is not taken.
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
}

/// Nothing, in what people run.
#[cfg(not(feature = "failpoints"))]
pub fn point(_name: &str) {}
