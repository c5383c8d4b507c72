//! The socket of a client, over TCP or in the file system.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncWrite as _, Interest, Ready};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::http::proxies::Peer;

#[derive(Debug)]
pub(super) enum ClientStream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

macro_rules! either {
    ($own:expr, $stream:ident => $work:expr) => {
        match $own {
            ClientStream::Tcp($stream) => $work,
            #[cfg(unix)]
            ClientStream::Unix($stream) => $work,
        }
    };
}

impl ClientStream {
    /// Who opened the connection; none if the system does not say so, since it is gone.
    pub(super) fn peer(&self) -> Option<Peer> {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .ok()
                .map(|address| Peer::Address(address.ip())),
            #[cfg(unix)]
            Self::Unix(_) => Some(Peer::Unix),
        }
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(cx))
    }

    pub(super) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(bytes))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        either!(self, stream => stream.ready(interest).await)
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
