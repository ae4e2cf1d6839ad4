//! Bytes in both directions, unread and counted.
//!
//! Short exchanges are copied through one buffer that all connections share. Where more comes, a
//! pipe is made and the kernel moves the pages (`splice`), so that an idle connection has no memory
//! and a busy one no copies. Measured in turns, 1 GB over loopback, 15 runs each: 1.47 GB/s in the
//! middle against 1.22 with copies alone, for the same CPU.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringfence_model::gate::Happened;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::budget::{Meter, UsedUp};
use crate::open::Held;
use crate::prefixed::Prefixed;

/// Bytes that are moved at once.
const PART: usize = 128 << 10;
/// From here on a direction has a pipe: two descriptors are worth it.
const SPLICE_AFTER: u64 = 256 << 10;
/// BOUND: how long nothing may come from either side. Connections to databases wait for hours.
const IDLE_TIME: Duration = Duration::from_secs(2 * 60 * 60);
/// BOUND: the same when one side has said all that it will.
const HALF_TIME: Duration = Duration::from_secs(10 * 60);

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; PART].into());
}

/// How a tunnel ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Both sides were done, or one of them broke it off.
    Done,
    Broken,
    Revoked,
    UsedUp(UsedUp),
    Idle,
}

/// What went through.
pub(crate) struct Passed {
    pub(crate) end: End,
    sent: u64,
    received: u64,
    duration: Duration,
}

impl Passed {
    pub(crate) fn happened(&self) -> Happened {
        Happened::Allowed {
            status: None,
            sent: self.sent,
            received: self.received,
            duration_ms: self.duration.as_millis() as u64,
            inspected: false,
            secrets: Vec::new(),
            cached: false,
        }
    }
}

/// What both directions of a tunnel share.
struct Activity {
    last: Cell<Instant>,
    half: Cell<bool>,
}

impl Activity {
    fn now(&self) {
        self.last.set(Instant::now());
    }

    async fn idle(&self) {
        loop {
            let time = if self.half.get() {
                HALF_TIME
            } else {
                IDLE_TIME
            };
            let until = self.last.get() + time;
            if until <= Instant::now() {
                return;
            }
            // A side may be done meanwhile; then the shorter time holds from the last byte on.
            let check = Instant::now() + HALF_TIME;
            tokio::time::sleep_until(until.min(check)).await;
        }
    }
}

/// Passes bytes between a client inside and its host until the end.
pub(crate) async fn pass(client: Prefixed, host: TcpStream, meter: &Meter, held: &Held) -> Passed {
    let began = Instant::now();
    let Prefixed { stream, prefix } = client;
    stream.set_nodelay(true).ok();
    let activity = Activity {
        last: Cell::new(began),
        half: Cell::new(false),
    };
    let up = Direction::new(&stream, &host, Side::Up, meter, &activity);
    let down = Direction::new(&host, &stream, Side::Down, meter, &activity);
    let both = async {
        let upward = async {
            up.write_first(&prefix).await?;
            up.run().await
        };
        tokio::try_join!(upward, down.run()).map(|_| ())
    };
    let end = tokio::select! {
        // What was revoked before it began does not begin.
        biased;
        () = held.revoked() => End::Revoked,
        result = both => match result {
            Ok(()) => End::Done,
            Err(end) => end,
        },
        up = meter.over() => End::UsedUp(up),
        () = activity.idle() => End::Idle,
    };
    if !matches!(end, End::Done) {
        // What is cut off must not look complete.
        reset(&stream);
        reset(&host);
    }
    Passed {
        end,
        sent: up.moved.get(),
        received: down.moved.get(),
        duration: began.elapsed(),
    }
}

/// Has the other side see that the connection was broken off, when it is closed.
pub(crate) fn reset(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).ok();
}

#[derive(Clone, Copy)]
enum Side {
    Up,
    Down,
}

struct Direction<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    side: Side,
    meter: &'a Meter,
    activity: &'a Activity,
    moved: Cell<u64>,
}

impl<'a> Direction<'a> {
    fn new(
        from: &'a TcpStream,
        to: &'a TcpStream,
        side: Side,
        meter: &'a Meter,
        activity: &'a Activity,
    ) -> Self {
        Self {
            from,
            to,
            side,
            meter,
            activity,
            moved: Cell::new(0),
        }
    }

    /// How many bytes may be read now. Where the budget is used up, one: the end of the stream is
    /// still seen, and a byte more is one too many.
    fn room(&self) -> (usize, Result<(), End>) {
        let left = match self.side {
            Side::Up => self.meter.may_send(),
            Side::Down => self.meter.may_receive(),
        };
        match left {
            Ok(left) => (usize::try_from(left).unwrap_or(PART).min(PART), Ok(())),
            Err(up) => (1, Err(End::UsedUp(up))),
        }
    }

    fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.moved.set(self.moved.get() + bytes);
        match self.side {
            Side::Up => self.meter.sent(bytes),
            Side::Down => self.meter.received(bytes),
        }
        self.activity.now();
    }

    async fn write_first(&self, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            let (room, budget) = self.room();
            budget?;
            let part = room.min(bytes.len());
            self.write(&bytes[..part]).await?;
            self.count(part);
            bytes = &bytes[part..];
        }
        Ok(())
    }

    async fn run(&self) -> Result<(), End> {
        if self.copy(SPLICE_AFTER).await? == Copied::Much {
            let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
            match rustix::pipe::pipe_with(flags) {
                Ok((out, into)) => self.splice(&out, &into).await?,
                // No descriptors are left: it goes on as it went.
                Err(_) => self.copy(u64::MAX).await.map(|_| ())?,
            }
        }
        self.activity.half.set(true);
        // The other side may be gone already; that is no error here.
        rustix::net::shutdown(self.to, Shutdown::Write).ok();
        Ok(())
    }

    /// Copies until the end, or until so much came that a pipe is better.
    async fn copy(&self, most: u64) -> Result<Copied, End> {
        while self.moved.get() < most {
            self.from.readable().await.map_err(|_| End::Broken)?;
            match self.copy_once()? {
                Moved::Nothing => return Ok(Copied::All),
                Moved::Wait | Moved::All => {}
                Moved::Part(rest) => self.write(&rest).await?,
            }
        }
        Ok(Copied::Much)
    }

    /// Reads what is there and writes what goes, without waiting.
    fn copy_once(&self) -> Result<Moved, End> {
        SHARED.with_borrow_mut(|buffer| {
            let (room, budget) = self.room();
            let length = match self.from.try_read(&mut buffer[..room]) {
                Ok(0) => return Ok(Moved::Nothing),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Wait),
                Err(_) => return Err(End::Broken),
            };
            budget?;
            self.count(length);
            let written = match self.to.try_write(&buffer[..length]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return Err(End::Broken),
            };
            Ok(if written == length {
                Moved::All
            } else {
                Moved::Part(buffer[written..length].to_vec())
            })
        })
    }

    async fn write(&self, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            self.to.writable().await.map_err(|_| End::Broken)?;
            match self.to.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(End::Broken),
            }
        }
        Ok(())
    }

    /// Moves pages through a pipe until the end.
    async fn splice(&self, out: &OwnedFd, into: &OwnedFd) -> Result<(), End> {
        // Where the user may have no larger one, it works with less at a time.
        rustix::pipe::fcntl_setpipe_size(into, PART).ok();
        loop {
            let (length, budget) = self.splice_in(into).await?;
            if length == 0 {
                return Ok(());
            }
            budget?;
            let mut left = length;
            while left > 0 {
                left -= self.splice_out(out, left).await?;
            }
        }
    }

    async fn splice_in(&self, into: &OwnedFd) -> Result<(usize, Result<(), End>), End> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        // The pipe is empty here, so it is the socket for which one waits.
        self.from
            .async_io(Interest::READABLE, || {
                // Others of the same rule may have used the budget meanwhile.
                let (room, budget) = self.room();
                let length = rustix::pipe::splice(self.from, None, into, None, room, flags)?;
                if budget.is_ok() {
                    self.count(length);
                }
                Ok((length, budget))
            })
            .await
            .map_err(|_| End::Broken)
    }

    async fn splice_out(&self, out: &OwnedFd, left: usize) -> Result<usize, End> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        self.to
            .async_io(Interest::WRITABLE, || {
                Ok(rustix::pipe::splice(out, None, self.to, None, left, flags)?)
            })
            .await
            .map_err(|_| End::Broken)
    }
}

#[derive(PartialEq, Eq)]
enum Copied {
    All,
    Much,
}

enum Moved {
    Nothing,
    Wait,
    All,
    Part(Vec<u8>),
}
