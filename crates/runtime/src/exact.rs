//! Sleeps on a real clock that are exact to some tens of microseconds.
//!
//! Tokio's timers count whole milliseconds. A dedicated kernel timer, polled like a socket, is as exact as the
//! scheduler, and costs a few system calls instead of a thread.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Completes after `duration`, which must not be zero: a zero timer never fires.
pub(crate) async fn sleep(duration: Duration) -> io::Result<()> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: seconds, tv_nsec: duration.subsec_nanos().into() },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    // SAFETY: an owned descriptor names one open file, and the same one until it is dropped.
    let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? };
    timer.readable().await.map(drop)
}
