//! Unix sockets in a directory, however long its path is.
//!
//! A socket's address holds a path of about a hundred bytes. A longer path is reached through a descriptor of the open directory.

use std::{
    fs::{self, File, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, PermissionsExt},
            net::{SocketAddr, UnixStream as BlockingStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixStream};

/// How often we try to connect to a listener whose queue is full, and how long we wait in between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// A path that fits into a socket's address. It is valid as long as this exists.
struct Address {
    path: PathBuf,
    _dir: Option<File>,
}

fn address(dir: &Path, name: &str) -> io::Result<Address> {
    let path = dir.join(name);
    if SocketAddr::from_pathname(&path).is_ok() {
        return Ok(Address { path, _dir: None });
    }
    if !cfg!(target_os = "linux") {
        let bytes = path.as_os_str().len();
        let message = format!("the path {} has {bytes} bytes, too many for a socket: use a directory with a shorter path", path.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, message));
    }
    let (dir, path) = through(dir, name)?;
    Ok(Address { path, _dir: Some(dir) })
}

fn through(dir: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let dir = File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok((dir, path))
}

/// Listens on the socket `name` in `dir`; only for this user. Replaces a socket that nobody listens on any more. Two processes that do this
/// at the same time must use a lock.
///
/// # Errors
/// [`ErrorKind::AddrInUse`] when somebody listens already.
pub async fn listen(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let address = address(dir, name)?;
    let path = dir.join(name);
    let listener = match UnixListener::bind(&address.path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
            match UnixStream::connect(&address.path).await {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused && is_socket => {}
                _ => return Err(io::Error::new(ErrorKind::AddrInUse, format!("{} is in use", path.display()))),
            }
            fs::remove_file(&path)?;
            UnixListener::bind(&address.path)?
        }
        bound => bound?,
    };
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to the socket `name` in `dir`.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::ConnectionRefused`] when nobody listens there.
pub async fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let address = address(dir, name)?;
    let mut tries = 0;
    loop {
        match UnixStream::connect(&address.path).await {
            // The listener's queue is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Like [`connect`], but blocks.
///
/// # Errors
/// As for [`connect`].
pub fn connect_blocking(dir: &Path, name: &str) -> io::Result<BlockingStream> {
    let address = address(dir, name)?;
    BlockingStream::connect(&address.path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::testing::TempDir;

    async fn talks(dir: &Path) {
        let listener = listen(dir, "sock").await.expect("listens");
        assert_eq!(fs::metadata(dir.join("sock")).expect("there").permissions().mode() & 0o777, 0o600);
        let mut blocking = connect_blocking(dir, "sock").expect("connects");
        blocking.write_all(b"a").expect("written");
        let (mut stream, _) = listener.accept().await.expect("accepted");
        assert_eq!(stream.read_u8().await.expect("read"), b'a');
        let (connected, accepted) = tokio::join!(connect(dir, "sock"), listener.accept());
        connected.expect("connects");
        accepted.expect("accepted");
        let taken = listen(dir, "sock").await.expect_err("in use");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_socket_in_a_directory_is_found_again() {
        let dir = TempDir::new();
        talks(&dir.0).await;
        // Nobody listens there any more.
        assert_eq!(connect(&dir.0, "sock").await.expect_err("gone").kind(), ErrorKind::ConnectionRefused);
        talks(&dir.0).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_path_of_any_length_will_do() {
        let dir = TempDir::new();
        for bytes in 60..130 {
            let deep = dir.0.join("d".repeat(bytes));
            fs::create_dir_all(&deep).expect("a directory");
            talks(&deep).await;
        }
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let dir = TempDir::new();
        fs::write(dir.0.join("sock"), "precious").expect("written");
        assert_eq!(listen(&dir.0, "sock").await.expect_err("in use").kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read(dir.0.join("sock")).expect("there"), b"precious");
    }

    #[tokio::test]
    async fn where_there_is_nothing_nothing_is_found() {
        let dir = TempDir::new();
        assert_eq!(connect(&dir.0, "sock").await.expect_err("nothing").kind(), ErrorKind::NotFound);
        assert_eq!(connect_blocking(&dir.0, "sock").expect_err("nothing").kind(), ErrorKind::NotFound);
    }
}
