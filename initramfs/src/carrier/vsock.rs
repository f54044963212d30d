//! A vsock listener, the carrier of the monitor.
//!
//! The host connects; a new connection replaces the old one, so that a host that lost track of its connection gets a new
//! session at once. Only the host itself (context id 2) is accepted: user code cannot make vsock sockets, and nothing else
//! has business here.

use std::os::fd::OwnedFd;

use super::Presence;
use super::line::Line;
use crate::error::{During, Result};
use crate::poller::{Poller, Ready, Token};
use crate::sys::vsock;

/// `VMADDR_CID_HOST`.
const HOST: u32 = 2;

/// A listener and its connection.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    connection: Option<Line>,
}

impl Listener {
    pub(super) fn open(port: u32, poller: &Poller) -> Result<Self> {
        let socket = vsock::listen_on(port).during_with(|| format!("listen on vsock port {port}"))?;
        poller.add(&socket, Token::Listener)?;
        Ok(Self { socket, connection: None })
    }

    pub(super) fn line(&mut self) -> Option<&mut Line> {
        self.connection.as_mut()
    }

    pub(super) fn ready(&mut self, ready: Ready, poller: &Poller) -> Result<Presence> {
        if ready.token != Token::Listener {
            return Ok(Presence::Unchanged);
        }
        let mut presence = Presence::Unchanged;
        while let Some((connection, from)) =
            vsock::accept(&self.socket).during("accept a vsock connection")?
        {
            if from != HOST {
                crate::warning!("refused a vsock connection from context id {from}");
                continue;
            }
            self.connection = Some(Line::new(connection, Token::Carrier, poller)?);
            presence = Presence::Replaced;
        }
        Ok(presence)
    }

    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }
}
