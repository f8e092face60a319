//! The admin interface: HTTP with JSON over a Unix domain socket.
//!
//! Whoever can open the socket (mode 0600: the server's own user, and root) may do what an operator does:
//! replace disks, heal, verify, manage keys, export metadata. So the commands need no access key, and work
//! when every key is lost. The socket stands in every directory's `.striate/` and in a per-user run directory,
//! because any directory may be lost ([`find`]).
//!
//! [`messages`] says what is exchanged, [`client`] is the commands' side; the server's is `striate::admin`.

pub mod client;
pub mod find;
pub mod messages;
