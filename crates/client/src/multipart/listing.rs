//! Listings of uploads and of parts.

use striate_meta::records::{Object, Upload, UploadPart, object::Body};
use striate_meta::store::prefix_end;
use striate_meta::{ScanRange, keys};
use striate_stripe::id16;

use super::{info, parse_id, part};
use crate::blocks::gone;
use crate::walk::{Item, Walk};
use crate::{Client, ClientError, ListUploads, Page, PartInfo, UploadInfo};

/// Length of the NUL and id that follow the object's key in the key of an upload's row.
const UPLOAD_TAIL: usize = 17;

impl Client {
    /// Lists at most `max` parts of an upload with numbers above `after`.
    ///
    /// # Errors
    /// [`ClientError::NoSuchUpload`].
    pub async fn list_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        after: u32,
        max: usize,
    ) -> Result<Page<PartInfo>, ClientError> {
        let open = self.open_upload(bucket, key, upload).await?;
        let range = ScanRange {
            start: keys::part(&open.id, after.saturating_add(1)),
            end: prefix_end(&keys::parts(&open.id)),
        };
        let rows = self.inner.meta.scan(range, max.saturating_add(1)).await?;
        let parts = rows.iter().take(max).map(|row| Ok(part::info(row.record()?)));
        Ok(Page {
            items: parts.collect::<Result<_, ClientError>>()?,
            common_prefixes: Vec::new(),
            truncated: rows.len() > max && max > 0,
        })
    }

    /// Lists at most `max` parts of a multipart object with numbers above `after`, with their ETags and checksums.
    /// Empty for an object of a single put.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`].
    pub async fn object_parts(
        &self,
        bucket: &str,
        key: &str,
        after: u32,
        max: usize,
    ) -> Result<Page<PartInfo>, ClientError> {
        let object: Object = self.current_object(bucket, key).await?;
        let mut page = Page { items: Vec::new(), common_prefixes: Vec::new(), truncated: false };
        let Some(Body::Uploaded(uploaded)) = object.body else { return Ok(page) };
        let upload = id16(&uploaded.upload, "an upload")?;
        let numbers = uploaded.runs.iter().flat_map(|run| (0..run.count).map(move |i| run.first_number + i));
        let mut numbers: Vec<u32> =
            numbers.filter(|&number| number > after).take(max.saturating_add(1)).collect();
        page.truncated = numbers.len() > max && max > 0;
        numbers.truncate(max);
        let keys: Vec<_> = numbers.iter().map(|&number| keys::part(&upload, number)).collect();
        for row in self.inner.meta.get_many(&keys).await? {
            let row = row.ok_or_else(|| gone(format!("a part of {key:?}")))?;
            page.items.push(part::info(row.record::<UploadPart>()?));
        }
        Ok(page)
    }

    /// Lists the uploads of a bucket, ordered by key and then by id.
    ///
    /// # Errors
    /// [`ClientError::NoSuchBucket`].
    pub async fn list_uploads(&self, request: ListUploads) -> Result<Page<UploadInfo>, ClientError> {
        let after_row = parse_id(&request.after_upload)
            .map(|id| [request.after_key.as_bytes(), b"\0", &id[..], b"\0"].concat());
        let walked = self
            .walk(&Walk {
                space: keys::uploads(&request.bucket),
                tail_len: UPLOAD_TAIL,
                prefix: &request.prefix,
                delimiter: &request.delimiter,
                after: &request.after_key,
                after_row,
                max: request.max,
            })
            .await?;
        if walked.items.is_empty() {
            self.bucket_here(&request.bucket).await?;
        }
        let mut page = Page { items: Vec::new(), common_prefixes: Vec::new(), truncated: walked.more };
        for item in walked.items {
            match item {
                Item::Row(name, row) => page.items.push(info(name, row.record::<Upload>()?)),
                Item::Prefix(prefix) => page.common_prefixes.push(prefix),
            }
        }
        Ok(page)
    }
}
