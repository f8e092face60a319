//! POST forms: uploads that a browser sends under a signed policy (“Browser-Based Uploads
//! Using POST”, S3 API reference).
//!
//! A form becomes the PutObject that it describes: its fields become headers, its file becomes the body, which streams.
//! s3s also supports forms, but it holds their files in memory, forgets the files' names, and reads a policy before its
//! signature. The order here: the fields (bounded), the signature, the policy's expiration, the key's length, the
//! policy's conditions, the file.

mod answer;
mod parts;
mod policy;

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use s3s::Body;
use s3s::stream::DynByteStream;
use striate_client::MAX_KEY_LEN;

use crate::address::{Address, Endpoint, percent_encode};
use crate::auth::{self, SignatureContext};
use crate::body::RequestBody;
use crate::documents::PoolUser;
use crate::operations::is_condition;
use crate::refusal::Refusal;
use crate::trace::Trace;

pub(crate) use answer::FormAnswer;
use parts::{Fields, Form, boundary_of};
use policy::Policy;

/// Maximum number of bytes of a form that are held in memory.
pub(crate) const HELD_BYTES: usize = parts::MAX_FIELDS_BYTES;
/// Placeholder for the file's name in a key.
const FILE_NAME: &str = "${filename}";

/// A form with a valid signature and policy.
pub(crate) struct AcceptedForm {
    pub access_key: String,
    /// The PutObject that the form describes, without what the gateway carries.
    pub put: Request<Body>,
    pub answer: FormAnswer,
}

/// Returns whether a request is a form. A request that is signed in its header or query is
/// not, whatever its object's type.
pub(crate) fn is_form(parts: &Parts) -> bool {
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let names_form =
        content_type.is_some_and(|it| it.to_ascii_lowercase().starts_with("multipart/form-data"));
    parts.method == Method::POST && names_form && !auth::is_signed(parts)
}

/// Checks that a form is sent to a bucket.
///
/// # Errors
/// MethodNotAllowed.
pub(crate) fn check_address(address: &Address) -> Result<(), Refusal> {
    if address.bucket.is_empty() || !address.key.is_empty() {
        let resource = if address.bucket.is_empty() { "SERVICE" } else { "OBJECT" };
        return Err(Refusal::method_not_allowed(&Method::POST, resource, "GET, HEAD, PUT, DELETE"));
    }
    Ok(())
}

/// Accepts or refuses a form.
///
/// # Errors
/// S3's refusals of forms: MalformedPOSTRequest, SignatureDoesNotMatch, AccessDenied, InvalidPolicyDocument, …
pub(crate) async fn accept(
    parts: &Parts,
    body: RequestBody,
    address: &mut Address,
    front: FormContext<'_>,
) -> Result<AcceptedForm, Refusal> {
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = boundary_of(content_type.unwrap_or_default())?;
    let mut held = None;
    let reserve = |len| front.unsigned.reserve(&mut held, len);
    let Form { mut fields, file_name, mut file } =
        Form::read(body, boundary, Arc::clone(front.trace), reserve).await?;
    if let Some(claimed) = auth::claimed_key_of_form(|name| fields.get(name)) {
        front.trace.set_claimed_key(claimed);
    }
    let access_key = auth::verify_form(|name| fields.get(name), &front.signatures).await?;
    front.trace.set_access_key(&access_key);
    let policy = Policy::parse(fields.get("policy").unwrap_or_default())?;
    policy.check_expiration(front.signatures.now)?;
    let key = named_key(fields.get("key").unwrap_or_default(), &file_name)?;
    // Conditions apply to the final key.
    fields.set("key", key.clone());
    file.bound(policy.check(&fields, &address.bucket)?);
    address.key = key;
    let path = match front.signatures.bucket_host {
        Some(_) => format!("/{}", percent_encode(&address.key)),
        None => format!("/{}/{}", percent_encode(&address.bucket), percent_encode(&address.key)),
    };
    let location = parts.extensions.get::<Endpoint>().cloned().unwrap_or_default();
    let location = location.location(&address.bucket, &address.key);
    let answer = FormAnswer::new(&fields, &address.bucket, &address.key, location);
    let mut put = Request::new(Body::from(Box::pin(file) as DynByteStream));
    *put.method_mut() = Method::PUT;
    *put.uri_mut() =
        path.parse::<Uri>().map_err(|_| Refusal::bad("InvalidURI", "The key makes no address."))?;
    *put.headers_mut() = headers_of(&fields)?;
    if let Some(host) = parts.headers.get(header::HOST) {
        put.headers_mut().insert(header::HOST, host.clone());
    }
    Ok(AcceptedForm { access_key, put, answer })
}

/// Returns the key for a form's field `key`, with the file's name inserted. Its length is computed first: a form of 64
/// KiB can ask for a key of 90 MB.
///
/// # Errors
/// InvalidArgument for an empty field, KeyTooLongError for a key that is too long.
fn named_key(field: &str, file_name: &str) -> Result<String, Refusal> {
    if field.is_empty() {
        return Err(Refusal::bad("InvalidArgument", "Bucket POST must contain a field named 'key'."));
    }
    let names = field.matches(FILE_NAME).count();
    if field.len() - names * FILE_NAME.len() + names * file_name.len() > MAX_KEY_LEN {
        return Err(Refusal::bad("KeyTooLongError", "Your key is too long."));
    }
    Ok(field.replace(FILE_NAME, file_name))
}

/// What the gateway knows besides the form.
pub(crate) struct FormContext<'a> {
    pub signatures: SignatureContext<'a>,
    pub trace: &'a Arc<Trace>,
    /// Memory for what is not signed.
    pub unsigned: &'a PoolUser,
}

/// Returns the headers of the put. Only fields that describe the object are taken over: others, such as a copy source,
/// would turn it into a different request.
fn headers_of(fields: &Fields) -> Result<HeaderMap, Refusal> {
    const PLAIN: [&str; 9] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-md5",
        "content-type",
        "expires",
        "if-match",
        "if-none-match",
    ];
    let mut headers = HeaderMap::new();
    for (field, value) in fields.iter() {
        let name = match field {
            "acl" => "x-amz-acl",
            field if PLAIN.contains(&field) => field,
            field if describes_object(field) || field.starts_with("x-amz-checksum-") => field,
            field if is_condition(field) => {
                return Err(Refusal::not_implemented(format!("{field} is not available for forms.")));
            }
            _ => continue,
        };
        let invalid = || Refusal::bad("InvalidArgument", format!("The form's field {field} is no header."));
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?);
    }
    if let Some(tags) = fields.get("tagging") {
        let tags = crate::translate::tags_header(tags)?;
        headers
            .insert("x-amz-tagging", HeaderValue::try_from(tags).map_err(|_| parts::malformed("its tags"))?);
    }
    Ok(headers)
}

/// Returns whether an `x-amz-*` name describes the object that is written. Forms carry these as fields, and presigned
/// URLs may carry them in their query.
pub(crate) fn describes_object(name: &str) -> bool {
    let name = &*name.to_ascii_lowercase();
    const NAMES: [&str; 4] =
        ["x-amz-acl", "x-amz-storage-class", "x-amz-tagging", "x-amz-website-redirect-location"];
    const PREFIXES: [&str; 4] =
        ["x-amz-grant-", "x-amz-meta-", "x-amz-object-lock-", "x-amz-server-side-encryption"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
