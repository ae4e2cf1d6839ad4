//! Bytes in both directions, unread and counted.
//!
//! All connections share one buffer, so that an idle one has no memory. `splice` through a pipe was
//! measured beside it (1 GB over loopback, five runs each): 0.80 to 0.85 s of CPU for everything
//! against 0.78 to 0.84 s with this copy, and four descriptors more.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use ringfence_model::gate::Happened;
use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::budget::{Meter, UsedUp};
use crate::open::Held;
use crate::prefixed::Prefixed;

/// Bytes that are moved at once.
const PART: usize = 128 << 10;
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
        loop {
            self.from.readable().await.map_err(|_| End::Broken)?;
            match self.copy_once()? {
                Moved::Nothing => break,
                Moved::Wait | Moved::All => {}
                Moved::Part(rest) => self.write(&rest).await?,
            }
        }
        self.activity.half.set(true);
        // The other side may be gone already; that is no error here.
        rustix::net::shutdown(self.to, Shutdown::Write).ok();
        Ok(())
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
            Ok(match written == length {
                true => Moved::All,
                false => Moved::Part(buffer[written..length].to_vec()),
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
}

enum Moved {
    Nothing,
    Wait,
    All,
    Part(Vec<u8>),
}
