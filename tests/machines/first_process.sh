#!/bin/bash
# The first process of a machine: makes its files and becomes systemd. All processes of the machine end with it.
# Usage: first_process.sh NAME FOLDER, in new mount, process, host name, IPC and cgroup namespaces.
set -e
name=$1 folder=$2
mount --make-rprivate /
hostname "$name"

# Its own /etc and /usr, as they are on this machine when it is new; the rest is empty.
for place in etc usr; do
  mkdir -p "$folder/$place" "$folder/$place.work"
  mount -t overlay -o "lowerdir=/$place,upperdir=$folder/$place,workdir=$folder/$place.work" machine "/$place"
done
if [ ! -e "$folder/installed" ]; then
  rm -rf /etc/systemd/system /etc/rockoon /etc/profile.d/rockoon.sh
  mkdir -p /etc/systemd/system "$folder"/{opt,root,var/lib,var/log/journal,var/tmp,var/cache,var/spool}
  ln -s /run "$folder/var/run"
  echo "$name" >/etc/hostname
  cp "$folder/hosts" /etc/hosts
  tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
  cp /etc/skel/.profile "$folder/root"
  touch "$folder/installed"
fi

# Devices, mounted aside: the machine's own folder may be below /tmp, which is replaced last.
mkdir -p "$folder/dev"
mount -t tmpfs -o mode=755 machine "$folder/dev"
for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$folder/dev/${device%:*}" c 1 "${device#*:}"; done
mknod -m 666 "$folder/dev/tty" c 5 0
mkdir "$folder"/dev/{pts,shm}
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 machine "$folder/dev/pts"
mount -t tmpfs machine "$folder/dev/shm"
ln -s pts/ptmx "$folder/dev/ptmx"
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${link#*:}" "$folder/dev/${link%:*}"; done

mount --bind "$folder/var" /var
mount --bind "$folder/opt" /opt
mount --bind "$folder/root" /root
mount -t proc machine /proc
# systemd leaves sysctls and udev alone where these two are read-only.
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
mount -t sysfs -o ro machine /sys
mount -t tmpfs machine /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd,xattr machine /sys/fs/cgroup/systemd
mount -o remount,ro machine /sys/fs/cgroup
mount --move "$folder/dev" /dev
mount -t tmpfs -o mode=755 machine /run
for place in /*; do
  case $place in
    /etc | /usr | /var | /opt | /root | /run | /proc | /sys | /dev | /tmp) ;;
    *) [ -L "$place" ] || [ ! -d "$place" ] || mount -t tmpfs -o mode=755,size=1m machine "$place" ;;
  esac
done
mount -t tmpfs -o mode=1777 machine /tmp
cd /

# It must not set the clock of this machine, load modules, or read its kernel's log.
exec env -i container=machine PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv \
  --bounding-set=-sys_module,-sys_rawio,-sys_time,-sys_boot,-syslog,-mac_admin,-mac_override,-wake_alarm \
  /lib/systemd/systemd --log-target=console --show-status=no
