//! A bound on what a test may take.

use std::time::{Duration, Instant};

/// Fails, instead of hanging, where something hangs.
pub fn within<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(work()));
    let start = Instant::now();
    match receiver.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(_) if thread.is_finished() => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(_) => panic!("still not done after {:?}", start.elapsed()),
    }
}
