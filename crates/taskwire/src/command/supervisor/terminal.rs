//! A pseudo-terminal for the command's output: many programs buffer their output unless they write to a terminal.
//!
//! The command can only write to it. It has no input and is no controlling terminal: a program that wants to ask for a password finds no
//! terminal and says so, instead of waiting for ever. So the command's processes are found and ended like any others.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open},
    io::{FdFlags, fcntl_setfd},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};
use tokio::net::unix::pipe::Receiver;

/// So wide that programs break few lines.
const WINDOW: Winsize = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };

/// Set for a command on a terminal, unless its tool sets them: programs should not draw, and a pager would wait for a key.
pub(super) const VARIABLES: [(&str, &str); 3] = [("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat")];

/// Our end of a terminal, and the command's.
///
/// # Errors
/// When the system has none left.
pub(super) fn pair() -> io::Result<(Receiver, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    // The supervisor leads a session without a terminal, and must not get one by opening it.
    let theirs = open(ptsname(&ours, Vec::<u8>::new())?, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let mut modes = tcgetattr(&theirs)?;
    // Without this the terminal would turn each line feed into two bytes.
    modes.output_modes.remove(OutputModes::ONLCR);
    modes.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    tcsetwinsize(&theirs, WINDOW)?;
    fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
    Ok((Receiver::from_owned_fd_unchecked(ours)?, theirs))
}
