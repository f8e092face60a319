//! The admin interface: HTTP with JSON over a Unix domain socket.
//!
//! Every process that can open the socket (mode 0600: the server's own user, and root) may act as an operator: replace
//! disks, heal, verify, manage keys, export metadata. So the commands need no access key, and work even when every key
//! is lost. The socket is in every directory's `.striate/` and in a per-user run directory, because any directory may
//! be lost ([`find`]).
//!
//! [`messages`] defines the messages, [`client`] is the commands' side; the server's side is `striate::admin`.

pub mod client;
pub mod find;
pub mod messages;
